// Allreduce of float32 inside a host as a plain loop: no names, no negotiation, no failures. What Horovod is compared
// with. Ranks are processes that map the same memory; all of them call the same function with the same count.
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { kChunk = 16384, kBlock = 2048, kSpins = 200 };  // elements: 64 KiB, 8 KiB

// One for each rank, on a line of its own, in shared memory that begins with zeros.
typedef struct {
  _Alignas(64) atomic_ulong in;
  _Alignas(64) atomic_ulong out;
} Progress;

static void wait_for(const atomic_ulong* counter, unsigned long value) {
  for (int spins = 0; atomic_load_explicit(counter, memory_order_acquire) < value;) {
    if (++spins % kSpins == 0) sched_yield();
  }
}

static void add(float* restrict to, const float* restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

// arrays[r] is the array of rank r, in shared memory. `round` counts the calls, from 1.
void allreduce_shared(float** arrays, Progress* progress, int rank, int size, size_t count, unsigned long round) {
  const size_t begin = count * (size_t)rank / (size_t)size;
  const size_t end = count * ((size_t)rank + 1) / (size_t)size;
  atomic_store_explicit(&progress[rank].in, round, memory_order_release);
  for (int peer = 0; peer < size; ++peer) wait_for(&progress[peer].in, round);
  float* own = arrays[rank];
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t length = least(kBlock, end - at);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) add(own + at, arrays[peer] + at, length);
    }
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) memcpy(arrays[peer] + at, own + at, length * sizeof(float));
    }
  }
  atomic_store_explicit(&progress[rank].out, round, memory_order_release);
  for (int peer = 0; peer < size; ++peer) wait_for(&progress[peer].out, round);
}

// Elements of a chunk that `owner` reduces.
static size_t part_begin(size_t length, int owner, int size) { return length * (size_t)owner / (size_t)size; }

// `own` is private; rooms[r], in shared memory, has kChunk * size elements twice. `chunks` counts those of all calls.
unsigned long allreduce_private(float* own, float** rooms, Progress* progress, int rank, int size, size_t count,
                                unsigned long chunks) {
  const size_t chunk = (size_t)kChunk * (size_t)size;
  for (size_t at = 0; at < count; at += chunk) {
    const size_t length = least(chunk, count - at);
    const size_t half = (chunks % 2) * chunk;
    ++chunks;
    const size_t mine = part_begin(length, rank, size);
    const size_t end = part_begin(length, rank + 1, size);
    memcpy(rooms[rank] + half, own + at, mine * sizeof(float));
    memcpy(rooms[rank] + half + end, own + at + end, (length - end) * sizeof(float));
    atomic_store_explicit(&progress[rank].in, chunks, memory_order_release);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      wait_for(&progress[peer].in, chunks);
      add(own + at + mine, rooms[peer] + half + mine, end - mine);
    }
    memcpy(rooms[rank] + half + mine, own + at + mine, (end - mine) * sizeof(float));
    atomic_store_explicit(&progress[rank].out, chunks, memory_order_release);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      wait_for(&progress[peer].out, chunks);
      const size_t theirs = part_begin(length, peer, size);
      const size_t bytes = (part_begin(length, peer + 1, size) - theirs) * sizeof(float);
      memcpy(own + at + theirs, rooms[peer] + half + theirs, bytes);
    }
  }
  return chunks;
}
