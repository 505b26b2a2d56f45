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
  resolve(library, "MPI_Abi_get_version", all.abi_get_version);
  resolve(library, "MPI_Get_library_version", all.get_library_version);
  resolve(library, "MPI_Initialized", all.initialized);
  resolve(library, "MPI_Finalized", all.finalized);
  resolve(library, "MPI_Init_thread", all.init_thread);
  resolve(library, "MPI_Query_thread", all.query_thread);
  resolve(library, "MPI_Finalize", all.finalize);
  resolve(library, "MPI_Error_string", all.error_string);
  resolve(library, "MPI_Comm_rank", all.comm_rank);
  resolve(library, "MPI_Comm_size", all.comm_size);
  resolve(library, "MPI_Comm_split", all.comm_split);
  resolve(library, "MPI_Comm_group", all.comm_group);
  resolve(library, "MPI_Comm_create_group", all.comm_create_group);
  resolve(library, "MPI_Comm_set_errhandler", all.comm_set_errhandler);
  resolve(library, "MPI_Comm_free", all.comm_free);
  resolve(library, "MPI_Group_incl", all.group_incl);
  resolve(library, "MPI_Group_free", all.group_free);
  resolve(library, "MPI_Op_create_c", all.op_create);
  resolve(library, "MPI_Testall", all.testall);
  resolve(library, "MPI_Isend_c", all.isend);
  resolve(library, "MPI_Irecv_c", all.irecv);
  resolve(library, "MPI_Ibcast_c", all.ibcast);
  resolve(library, "MPI_Iallreduce_c", all.iallreduce);
  resolve(library, "MPI_Ireduce_scatter_c", all.ireduce_scatter);
  resolve(library, "MPI_Iallgatherv_c", all.iallgatherv);
  resolve(library, "MPI_Ialltoallv_c", all.ialltoallv);
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
