#include "backend/mpi/library.h"

#include <dlfcn.h>

#include <array>

#include "base/error.h"

namespace hvd::mpi {
namespace {

template <class Function>
void resolve(void* library, const char* name, Function*& function) {
  void* found = dlsym(library, name);
  if (found == nullptr) throw Error(ErrorKind::kUsage, std::string("it lacks ") + name);
  function = reinterpret_cast<Function*>(found);
}

Functions resolve_all(void* library) {
  Functions all;
#define HVD_RESOLVE(member, symbol, signature) resolve(library, #symbol, all.member);
  HVD_MPI_FUNCTIONS(HVD_RESOLVE)
#undef HVD_RESOLVE
  return all;
}

void check_abi(const Functions& functions) {
  int major = 0;
  int minor = 0;
  functions.abi_get_version(&major, &minor);
  if (major == kAbiMajor) return;
  throw Error(ErrorKind::kUsage, "its binary interface is version " + std::to_string(major) + "." +
                                     std::to_string(minor) + ", not " + std::to_string(kAbiMajor));
}

std::string version_of(const Functions& functions) {
  std::array<char, kMaxLibraryVersionString> text{};
  int length = 0;
  if (functions.get_library_version(text.data(), &length) != kSuccess) return "of unknown version";
  const std::string version(text.data());
  return version.substr(0, version.find('\n'));
}

// Where the loader found it.
std::string path_of(const Functions& functions, const std::string& candidate) {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<void*>(functions.finalize), &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : candidate;
}

// One that the program has loaded already: two in one process get in each other's way.
void* find_loaded(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    if (candidate.find('/') != std::string::npos) continue;
    if (void* found = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return found;
  }
  return nullptr;
}

}  // namespace

Library load_library(const std::vector<std::string>& candidates) {
  void* loaded = find_loaded(candidates);
  std::string reasons;
  for (const std::string& candidate : candidates) {
    void* opened = loaded != nullptr ? loaded : dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    try {
      if (opened == nullptr) throw Error(ErrorKind::kUsage, dlerror());
      Library library;
      library.functions = resolve_all(opened);
      check_abi(library.functions);
      library.path = path_of(library.functions, candidate);
      library.version = version_of(library.functions);
      return library;
    } catch (const Error& error) {
      reasons += "\n  " + candidate + ": " + error.what();
    }
  }
  throw Error(ErrorKind::kUsage,
              "there is no MPI library with the standard binary interface of MPI 5 (libmpi_abi). Tried:" + reasons);
}

}  // namespace hvd::mpi
