// What horovod.jax.native_ops registers with JAX.
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "bindings/jax/attributes.h"
#include "bindings/jax/execution.h"

namespace hvd::jax {
namespace {

void declare_version(XlaMetadata& metadata) {
  metadata.version.major = kXlaMajor;
  metadata.version.minor = kXlaMinor;
  metadata.traits = 0;
}

XlaError* run(XlaCallFrame& frame) {
  try {
    const auto execution = std::make_shared<Execution>(attributes_of(frame), frame);
    execution->start();
    return execution->outcome(frame);
  } catch (const std::exception& error) {  // nothing has been submitted
    XlaErrorCreateArgs args = {sizeof(args), nullptr, error.what(), kXlaInternal};
    return frame.api->error_create(&args);
  }
}

}  // namespace
}  // namespace hvd::jax

extern "C" {

// XLA asks for the version first, with an extension and no context.
__attribute__((visibility("default"))) hvd::jax::XlaError* horovod_jax_collective(hvd::jax::XlaCallFrame* frame) {
  const hvd::jax::XlaExtension* extension = frame->extensions;
  if (extension != nullptr && extension->type == hvd::jax::kMetadataExtension) {
    hvd::jax::declare_version(*reinterpret_cast<const hvd::jax::XlaMetadataExtension*>(extension)->metadata);
    return nullptr;
  }
  return hvd::jax::run(*frame);
}

// What horovod.jax.native_ops calls, by ctypes.
__attribute__((visibility("default"))) int64_t horovod_jax_num_started() { return hvd::jax::num_started(); }
__attribute__((visibility("default"))) int64_t horovod_jax_num_ended() { return hvd::jax::num_ended(); }
}
