// What Horovod uses of the standard binary interface of MPI (MPI 5.0, chapter "Application Binary Interface"): one
// declaration serves every library that has it, so none is needed to build. Handles are pointers; the values of those
// that are predefined are part of the standard.
//
// All calls are those with large counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::mpi {

using Comm = struct AbiComm*;
using Group = struct AbiGroup*;
using Datatype = struct AbiDatatype*;
using Op = struct AbiOp*;
using Request = struct AbiRequest*;
using Errhandler = struct AbiErrhandler*;
using Count = int64_t;
using Aint = intptr_t;

struct Status {
  int source;
  int tag;
  int error;
  int internal[5];
};

template <class Handle>
[[nodiscard]] inline Handle predefined(uintptr_t value) {
  return reinterpret_cast<Handle>(value);
}

inline const Comm kCommNull = predefined<Comm>(0x100);
inline const Comm kCommWorld = predefined<Comm>(0x101);
inline const Group kGroupNull = predefined<Group>(0x108);
inline const Errhandler kErrorsReturn = predefined<Errhandler>(0x143);
inline const Request kRequestNull = predefined<Request>(0x180);

inline const Op kOpNull = predefined<Op>(0x20);
inline const Op kSum = predefined<Op>(0x21);
inline const Op kMin = predefined<Op>(0x22);
inline const Op kMax = predefined<Op>(0x23);
inline const Op kProd = predefined<Op>(0x24);

inline const Datatype kFloat = predefined<Datatype>(0x210);
inline const Datatype kDouble = predefined<Datatype>(0x214);
inline const Datatype kInt8 = predefined<Datatype>(0x240);
inline const Datatype kUint8 = predefined<Datatype>(0x241);
inline const Datatype kByte = predefined<Datatype>(0x247);
inline const Datatype kInt16 = predefined<Datatype>(0x248);
inline const Datatype kUint16 = predefined<Datatype>(0x249);
inline const Datatype kInt32 = predefined<Datatype>(0x250);
inline const Datatype kUint32 = predefined<Datatype>(0x251);
inline const Datatype kInt64 = predefined<Datatype>(0x258);
inline const Datatype kUint64 = predefined<Datatype>(0x259);

inline constexpr int kSuccess = 0;
inline constexpr int kThreadFunneled = 1024;
inline constexpr int kThreadMultiple = 4096;
inline constexpr int kMaxErrorString = 512;
inline constexpr int kMaxLibraryVersionString = 8192;
inline constexpr int kAbiMajor = 1;
inline constexpr int kLeastTagUpperBound = 32767;

[[nodiscard]] inline void* in_place() { return reinterpret_cast<void*>(uintptr_t{1}); }
[[nodiscard]] inline Status* statuses_ignore() { return nullptr; }

// The standard has no const here, which makes no difference to a caller.
using UserFunction = void(const void* in, void* inout, const Count* count, const Datatype* datatype);

// The functions of a library; a test brings its own.
struct Functions {
  int (*abi_get_version)(int* major, int* minor) = nullptr;
  int (*get_library_version)(char* version, int* length) = nullptr;
  int (*initialized)(int* flag) = nullptr;
  int (*finalized)(int* flag) = nullptr;
  int (*init_thread)(int* argc, char*** argv, int required, int* provided) = nullptr;
  int (*query_thread)(int* provided) = nullptr;
  int (*finalize)() = nullptr;
  int (*error_string)(int code, char* text, int* length) = nullptr;
  int (*comm_rank)(Comm comm, int* rank) = nullptr;
  int (*comm_size)(Comm comm, int* size) = nullptr;
  int (*comm_split)(Comm comm, int color, int key, Comm* made) = nullptr;
  int (*comm_group)(Comm comm, Group* group) = nullptr;
  int (*comm_create_group)(Comm comm, Group group, int tag, Comm* made) = nullptr;
  int (*comm_set_errhandler)(Comm comm, Errhandler handler) = nullptr;
  int (*comm_free)(Comm* comm) = nullptr;
  int (*group_incl)(Group group, int count, const int* ranks, Group* made) = nullptr;
  int (*group_free)(Group* group) = nullptr;
  int (*op_create)(UserFunction* function, int commutes, Op* op) = nullptr;
  int (*testall)(int count, Request* requests, int* flag, Status* statuses) = nullptr;
  int (*isend)(const void* data, Count count, Datatype datatype, int to, int tag, Comm comm,
               Request* request) = nullptr;
  int (*irecv)(void* data, Count count, Datatype datatype, int from, int tag, Comm comm, Request* request) = nullptr;
  int (*ibcast)(void* data, Count count, Datatype datatype, int root, Comm comm, Request* request) = nullptr;
  int (*iallreduce)(const void* input, void* output, Count count, Datatype datatype, Op op, Comm comm,
                    Request* request) = nullptr;
  int (*ireduce_scatter)(const void* input, void* output, const Count* counts, Datatype datatype, Op op, Comm comm,
                         Request* request) = nullptr;
  int (*iallgatherv)(const void* input, Count count, Datatype input_type, void* output, const Count* counts,
                     const Aint* offsets, Datatype output_type, Comm comm, Request* request) = nullptr;
  int (*ialltoallv)(const void* input, const Count* input_counts, const Aint* input_offsets, Datatype input_type,
                    void* output, const Count* output_counts, const Aint* output_offsets, Datatype output_type,
                    Comm comm, Request* request) = nullptr;
};

}  // namespace hvd::mpi
