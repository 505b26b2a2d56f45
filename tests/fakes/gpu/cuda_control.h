// What a test asks of the fake CUDA driver, and what the fake NCCL does: exported by libfake_cuda.so beside the
// functions of the driver. FAKE_CUDA_CONTROLS(X) lists them as X(type of result, name, (parameters)).
#pragma once

#include <cstdint>

// How many are alive: "contexts", "streams" (without default ones), "events", "pinned blocks", "pinned bytes",
// "allocations", "allocated bytes". Of all devices.
//   int64_t alive(what)
// How often a function of the driver was called, by its exported name.
//   int64_t calls(function)
// How often a primary context was made on the device.
//   int64_t contexts_made(device)
// Uses that a real driver would punish late or never, a line each; empty if there were none. Valid until the thread
// asks again.
//   const char* wrong_uses()
// Follows a specification as HVD_FAKE_CUDA does; see settings.h. Returns 0 if it is not understood.
//   int configure(specification)
// Streams of the device stop before what they do next, until they are released; after 60 s they fail.
//   void hold_device(device), void release_device(device)
//   int hold_stream(stream), int release_stream(stream): of streams that were created; returns 0 if it is not one.
// From now on all calls on the device, and what lies in its streams, fail with this code.
//   void fail_device(device, code)
// Undoes specifications, holds, errors of devices, wrong uses and counted calls. Returns what is alive in all.
//   int64_t reset()
// Waits until the stream is empty; the default one of the thread's context for null. Returns a code of the driver.
//   int synchronize(stream)
// Copies to and from memory that the driver allocated, where the host may not touch it. Returns a code of the driver.
//   int read(memory, to, bytes), int write(memory, from, bytes)
// Of a stream: its flags and priority; -1 for flags if it is none.
//   int stream_flags(stream), int stream_priority(stream)
#define FAKE_CUDA_CONTROLS(X)                                        \
  X(int64_t, alive, (const char* what))                              \
  X(int64_t, calls, (const char* function))                          \
  X(int64_t, contexts_made, (int device))                            \
  X(const char*, wrong_uses, ())                                     \
  X(int, configure, (const char* specification))                     \
  X(void, hold_device, (int device))                                 \
  X(void, release_device, (int device))                              \
  X(int, hold_stream, (void* stream))                                \
  X(int, release_stream, (void* stream))                             \
  X(void, fail_device, (int device, int code))                       \
  X(int64_t, reset, ())                                              \
  X(int, synchronize, (void* stream))                                \
  X(int, read, (uint64_t memory, void* to, uint64_t bytes))          \
  X(int, write, (uint64_t memory, const void* from, uint64_t bytes)) \
  X(int, stream_flags, (void* stream))                               \
  X(int, stream_priority, (void* stream))

// For the fake NCCL alone; C++ between libraries of one build.
#ifdef FAKE_CUDA_INSIDE
#include <functional>
#include <memory>
#include <string>

namespace fake_cuda {

#define FAKE_CUDA_PRIVATE __attribute__((visibility("default")))

struct StreamPlace {
  int device = -1;               // -1: there is no such stream
  std::shared_ptr<void> stream;  // keeps its place although it may be destroyed
};
// The default stream is that of the device.
FAKE_CUDA_PRIVATE StreamPlace fake_cuda_find_stream(void* stream, int device);
// Queues work; it is called on the stream's thread, unless the device has failed: then it is dropped.
FAKE_CUDA_PRIVATE void fake_cuda_enqueue(const StreamPlace& place, std::function<void()> work);
// Where work on a stream finds memory that a program calls `address`; nullptr if it may not be used now.
FAKE_CUDA_PRIVATE std::shared_ptr<std::byte> fake_cuda_resolve(const void* address, size_t bytes);
// -1: no context is current on this thread.
FAKE_CUDA_PRIVATE int fake_cuda_current_device();
FAKE_CUDA_PRIVATE std::string fake_cuda_uuid_of(int device);
FAKE_CUDA_PRIVATE void fake_cuda_note_wrong_use(const std::string& text);
// Whether work on the stream should end at once.
FAKE_CUDA_PRIVATE bool fake_cuda_is_ending(const StreamPlace& place);
FAKE_CUDA_PRIVATE void fake_cuda_break_device(int device, int code);
// Whether this thread is one of a stream that executes a function of the host.
FAKE_CUDA_PRIVATE bool fake_cuda_in_host_function();

}  // namespace fake_cuda
#endif
