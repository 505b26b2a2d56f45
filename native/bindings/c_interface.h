// The engine for libraries that are loaded into a framework: plain C, so that they link nothing of ours, and a table of
// functions, so that they need to find nothing but it. The module _native hands it out.
//
// Numbers are those of the native code: OpKind, DType, ReduceOp, ErrorKind. A library checks the version and the sizes
// before it calls anything; both change with the layout, and what is new goes to the end (docs/decisions/0033).
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kHvdInterfaceVersion = 5 };

enum { kHvdCpu = 0, kHvdGpu = 1 };  // types of devices

typedef struct HvdEngine HvdEngine;  // a reference to an engine
typedef struct HvdOperation HvdOperation;

// A contiguous array. Zeros for the device are the memory of the CPU.
typedef struct {
  void* data;
  int32_t dtype;
  int32_t num_dims;
  const int64_t* shape;
  int32_t device_type;
  int32_t device_index;  // of a GPU, as its driver counts in this process
  void* stream;          // of a GPU: the one on which inputs become valid and outputs may be overwritten
} HvdBuffer;

typedef struct {
  int32_t kind;
  const char* prefix;    // the name is <prefix>.<name>
  const char* name;      // none, or empty: the operations without a name are counted; not of a barrier or join
  uint32_t process_set;  // the engine's number
  const HvdBuffer* inputs;
  int32_t num_inputs;
  const HvdBuffer* outputs;
  int32_t num_outputs;
  int32_t reduce_op;
  double prescale;
  double postscale;
  int32_t root;           // global rank
  const int64_t* splits;  // none if all members get the same number of rows
  int32_t num_splits;
  const char* call_site;
  int32_t waits;     // the caller calls wait() or wait_once() at once
  int32_t weighted;  // 1: an Average weighs the values of each rank; on all ranks or on none
  double weight;     // of this rank's
  int32_t priority;  // what has more goes first

  // Called once when the operation is done, unless submit() refused it; perhaps before submit() returns, and by a
  // thread that must not be blocked.
  void (*done)(void* context);
  void* context;

  int32_t quantization;  // of an allreduce by Sum or Average: how floating point travels between hosts; 0 as it is
  // Of a quantized allreduce: none, or float32 of as many elements for each input; see residuals in the engine's
  // request.
  const HvdBuffer* residuals;
  int32_t num_residuals;
} HvdRequest;

typedef struct {
  uint32_t version;
  uint32_t size;          // bytes of this table
  uint32_t request_size;  // bytes of HvdRequest
  uint32_t buffer_size;   // bytes of HvdBuffer

  // The buffers must stay until the operation is done, what the request points at need not.
  HvdOperation* (*prepare)(const HvdRequest*);
  // Returns 1, or 0 if the operation is refused: then it has an error, and `done` is not called. Otherwise `done` may
  // have released the operation already.
  int32_t (*submit)(HvdEngine*, HvdOperation*);
  // Until the operation is done, or the handler of a signal (Ctrl-C) raised an exception, which is gone then; returns
  // whether it is done.
  int32_t (*wait)(HvdEngine*, HvdOperation*);
  // At most for so long, and then goes on with something else: `done` is to tell of the end. The caller keeps `done`
  // from releasing the operation before this returns.
  void (*wait_once)(HvdEngine*, HvdOperation*, int64_t microseconds);

  // Of an operation that is done or was refused. The kind is -1, and the text null, if it succeeded.
  int32_t (*error_kind)(const HvdOperation*);
  const char* (*error_text)(const HvdOperation*);
  int32_t (*num_results)(const HvdOperation*);
  // Memory that the engine allocated. The caller owns a reference, which release_memory() drops.
  void* (*take_result)(const HvdOperation*, int32_t index, HvdBuffer* result);
  const int64_t* (*received_splits)(const HvdOperation*, int32_t* count);
  int32_t (*last_joined)(const HvdOperation*);

  // Of an operation on a GPU that is done: lets the stream wait until its memory is valid and free. Returns 1, or 0 if
  // the device refuses; then the operation has an error.
  int32_t (*order)(HvdEngine*, HvdOperation*, int32_t device_index, void* stream);

  void (*release_memory)(void* reference);
  void (*release_operation)(HvdOperation*);
  void (*release_engine)(HvdEngine*);
} HvdInterface;

#ifdef __cplusplus
}
#endif
