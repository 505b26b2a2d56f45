#include "backend/nccl/library.h"

#include <dlfcn.h>

#include "backend/nccl/abi.h"
#include "base/error.h"

namespace hvd::nccl {
namespace {

// Whose communicators never block their caller and have the fields of Config. 2.18.1 also ended the hangs of alltoall
// with uneven sizes, as its release notes say.
constexpr int kOldestVersion = 21800;
// From 2.9.0 on, versions are counted in this way: 2.29.7 is 22907. Before it was 2808 for 2.8.8.
constexpr int kMajor = 10000;
constexpr int kMinor = 100;

struct Fault {
  int first;
  int last;
  const char* text;
};

// Only what NVIDIA itself says of released versions that are not too old for us.
constexpr Fault kFaults[] = {
    {21801, 21801,
     "its release notes say that data may be corrupted where a network card shares a PCI switch with only one GPU, as "
     "on HGX H100; NCCL_PROTO=^LL128 avoids it, or a later version"},
    {22907, 23006,
     "it may hang on several hosts with InfiniBand (known issue in NVIDIA's documentation of cuEST); "
     "NCCL_PXN_DISABLE=1 avoids it, or version 2.30.7"},
};

template <class Function>
void resolve(void* library, const char* name, Function*& function) {
  void* found = dlsym(library, name);
  if (found == nullptr) throw Error(ErrorKind::kUsage, std::string("it lacks ") + name);
  function = reinterpret_cast<Function*>(found);
}

std::shared_ptr<const Functions> resolve_all(void* library) {
  auto all = std::make_shared<Functions>();
#define HVD_RESOLVE(member, symbol, signature) resolve(library, #symbol, all->member);
  HVD_NCCL_FUNCTIONS(HVD_RESOLVE)
#undef HVD_RESOLVE
  all->get_last_error = reinterpret_cast<decltype(all->get_last_error)>(dlsym(library, "ncclGetLastError"));
  return all;
}

// Before anything else: what an old library lacks says less than its age.
int version_of(void* library, bool is_rccl) {
  Result (*get_version)(int*) = nullptr;
  resolve(library, "ncclGetVersion", get_version);
  int version = 0;
  if (get_version(&version) != kSuccess) throw Error(ErrorKind::kUsage, "ncclGetVersion failed");
  if (version >= kOldestVersion) return version;
  throw Error(ErrorKind::kUsage, "it is version " + version_text(version) + ", but at least " +
                                     version_text(kOldestVersion) + " is needed, whose communicators do not block" +
                                     (is_rccl ? "" : "; earlier ones also hang in alltoall with uneven sizes"));
}

// Where the loader found it.
std::string path_of(void* library, const std::string& candidate) {
  Dl_info info{};
  void* symbol = dlsym(library, "ncclGetVersion");
  const bool known = symbol != nullptr && dladdr(symbol, &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : candidate;
}

// RCCL has NCCL's symbols and some of its own.
bool is_rccl(void* library, const std::string& path) {
  return path.find("librccl") != std::string::npos || dlsym(library, "mscclLoadAlgo") != nullptr;
}

std::shared_ptr<const Library> examine(void* opened, const std::string& candidate) {
  auto library = std::make_shared<Library>();
  library->path = path_of(opened, candidate);
  library->is_rccl = is_rccl(opened, library->path);
  library->version = version_of(opened, library->is_rccl);
  library->functions = resolve_all(opened);
  const std::string fault = library->is_rccl ? "" : known_fault(library->version);
  if (!fault.empty()) library->warning = library->name() + " (" + library->path + ") has a known fault: " + fault + ".";
  return library;
}

}  // namespace

std::string version_text(int version) {
  if (version < kMajor)  // 2.8 and before
    return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." +
           std::to_string(version % 100);
  return std::to_string(version / kMajor) + "." + std::to_string(version / kMinor % 100) + "." +
         std::to_string(version % kMinor);
}

std::string known_fault(int version) {
  for (const Fault& fault : kFaults) {
    if (version >= fault.first && version <= fault.last) return fault.text;
  }
  return "";
}

std::string Library::name() const { return (is_rccl ? "RCCL " : "NCCL ") + version_text(version); }

std::shared_ptr<const Library> load_library(const std::vector<std::string>& candidates) {
  std::string reasons;
  // Two copies in one process would each want threads, memory and network connections, so a loaded one comes first.
  for (const int loaded : {RTLD_NOLOAD, 0}) {
    for (const std::string& candidate : candidates) {
      void* opened = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | loaded);
      if (opened == nullptr && loaded != 0) continue;
      try {
        if (opened == nullptr) throw Error(ErrorKind::kUsage, dlerror());
        return examine(opened, candidate);
      } catch (const Error& error) {
        const std::string reason = "\n  " + candidate + ": " + error.what();
        if (reasons.find(reason) == std::string::npos) reasons += reason;
      }
    }
  }
  throw Error(ErrorKind::kUsage, "there is no NCCL that can be used. Tried:" +
                                     (reasons.empty() ? std::string(" nothing, as no candidate was given") : reasons));
}

}  // namespace hvd::nccl
