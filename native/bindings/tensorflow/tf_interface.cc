#include "bindings/tensorflow/tf_interface.h"

#include <dlfcn.h>

#include "bindings/tensorflow/definitions.h"
#include "bindings/tensorflow/kernels.h"

namespace hvd::tensorflow {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

struct Lookup {
  TensorFlow functions;
  std::string problem;

  Lookup() {
    void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
      problem = std::string(kLibrary) + " is not loaded";
      return;
    }
#define HVD_LOOK_UP(name, signature)                                                        \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(library, "TF_" #name)); \
  if (functions.name == nullptr) problem += (problem.empty() ? "it lacks TF_" : ", TF_") + std::string(#name);
    HVD_TENSORFLOW_FUNCTIONS(HVD_LOOK_UP)
#undef HVD_LOOK_UP
  }
};

// Never destroyed: kernels may outlive them.
Lookup& lookup() {
  static auto* made = new Lookup();
  return *made;
}

}  // namespace

const TensorFlow& tf = lookup().functions;

const std::string& problem() { return lookup().problem; }

// For horovod.tensorflow.native_ops.
extern "C" __attribute__((visibility("default"))) const char* horovod_tensorflow_problem() { return problem().c_str(); }

void note_problem(const std::string& problem) {
  std::string& all = lookup().problem;
  all += (all.empty() ? "" : "; ") + problem;
}

namespace {

// TensorFlow collects what is registered while it loads a library.
const bool kRegistered = [] {
  if (!problem().empty()) return false;
  register_definitions();
  register_kernels();
  return problem().empty();
}();

}  // namespace

}  // namespace hvd::tensorflow
