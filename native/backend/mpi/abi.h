// What Horovod uses of the standard binary interface of MPI (MPI 5.0, chapter "Application Binary Interface"): one
// declaration serves every library that has it, so none is needed to build. Handles are pointers; the values of those
// that are predefined are part of the standard.
//
// All calls are those with large counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

// Member, name in the library, signature.
#define HVD_MPI_FUNCTIONS(X)                                                                                          \
  X(abi_get_version, MPI_Abi_get_version, int(int* major, int* minor))                                                \
  X(get_library_version, MPI_Get_library_version, int(char* version, int* length))                                    \
  X(initialized, MPI_Initialized, int(int* flag))                                                                     \
  X(finalized, MPI_Finalized, int(int* flag))                                                                         \
  X(init_thread, MPI_Init_thread, int(int* argc, char*** argv, int required, int* provided))                          \
  X(query_thread, MPI_Query_thread, int(int* provided))                                                               \
  X(finalize, MPI_Finalize, int())                                                                                    \
  X(error_string, MPI_Error_string, int(int code, char* text, int* length))                                           \
  X(comm_rank, MPI_Comm_rank, int(Comm comm, int* rank))                                                              \
  X(comm_size, MPI_Comm_size, int(Comm comm, int* size))                                                              \
  X(comm_split, MPI_Comm_split, int(Comm comm, int color, int key, Comm* made))                                       \
  X(comm_group, MPI_Comm_group, int(Comm comm, Group * group))                                                        \
  X(comm_create_group, MPI_Comm_create_group, int(Comm comm, Group group, int tag, Comm* made))                       \
  X(comm_set_errhandler, MPI_Comm_set_errhandler, int(Comm comm, Errhandler handler))                                 \
  X(comm_free, MPI_Comm_free, int(Comm * comm))                                                                       \
  X(group_incl, MPI_Group_incl, int(Group group, int count, const int* ranks, Group* made))                           \
  X(group_free, MPI_Group_free, int(Group * group))                                                                   \
  X(op_create, MPI_Op_create_c, int(UserFunction * function, int commutes, Op* op))                                   \
  X(testall, MPI_Testall, int(int count, Request* requests, int* flag, Status* statuses))                             \
  X(isend, MPI_Isend_c,                                                                                               \
    int(const void* data, Count count, Datatype datatype, int to, int tag, Comm comm, Request* request))              \
  X(irecv, MPI_Irecv_c,                                                                                               \
    int(void* data, Count count, Datatype datatype, int from, int tag, Comm comm, Request* request))                  \
  X(ibcast, MPI_Ibcast_c, int(void* data, Count count, Datatype datatype, int root, Comm comm, Request* request))     \
  X(iallreduce, MPI_Iallreduce_c,                                                                                     \
    int(const void* input, void* output, Count count, Datatype datatype, Op op, Comm comm, Request* request))         \
  X(ireduce_scatter, MPI_Ireduce_scatter_c,                                                                           \
    int(const void* input, void* output, const Count* counts, Datatype datatype, Op op, Comm comm, Request* request)) \
  X(iallgatherv, MPI_Iallgatherv_c,                                                                                   \
    int(const void* input, Count count, Datatype input_type, void* output, const Count* counts, const Aint* offsets,  \
        Datatype output_type, Comm comm, Request* request))                                                           \
  X(ialltoallv, MPI_Ialltoallv_c,                                                                                     \
    int(const void* input, const Count* input_counts, const Aint* input_offsets, Datatype input_type, void* output,   \
        const Count* output_counts, const Aint* output_offsets, Datatype output_type, Comm comm, Request* request))

// The functions of a library; a test brings its own.
struct Functions {
#define HVD_DECLARE(member, symbol, signature) std::add_pointer_t<signature> member = nullptr;
  HVD_MPI_FUNCTIONS(HVD_DECLARE)
#undef HVD_DECLARE
};

}  // namespace hvd::mpi
