/* How fast this machine sums float32 arrays of processes that share nothing else: what bounds any allreduce on a host.
 *
 *   limits RANKS ROUNDS BYTES...    prints, for each way and number of bytes: BYTES WAY CHUNK_KIB MEDIAN_US
 *
 * A plain loop, without names, negotiation or failures. Each rank copies the parts that others sum into shared memory,
 * adds theirs to its own part, copies the sum into shared memory and the others' sums out of it, chunk by chunk. The
 * ways differ in how they write to shared memory: memcpy; stores that bypass the caches; stores and a hint to move the
 * lines out of the core's own caches. A last one has no shared memory: process_vm_readv reads the other's array.
 * Waiting ranks spin, and yield their core. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 16, MOST_ROUNDS = 1000, SPINS = 200, NUM_CHUNKS = 5, ROOM_BYTES = 64 << 20 };
enum Way { MEMCPY, STREAM, DEMOTE, READV, NUM_WAYS };
static const char *const NAMES[NUM_WAYS] = {"memcpy", "stream", "demote", "readv"};
static const size_t CHUNKS[NUM_CHUNKS] = {16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10};

struct shared {
  struct { _Alignas(64) atomic_ulong in; _Alignas(64) atomic_ulong out; } progress[MOST_RANKS];
  pid_t pids[MOST_RANKS];
};
static struct shared *all;
static float *rooms[MOST_RANKS];
static int rank, size;
static unsigned long turn; /* of all ranks: chunks so far */

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void wait_for(const atomic_ulong *counter, unsigned long value) {
  for (int spins = 0; atomic_load_explicit(counter, memory_order_acquire) < value;) {
    _mm_pause();
    if (++spins % SPINS == 0) sched_yield();
  }
}

static void say_in(void) { atomic_store_explicit(&all->progress[rank].in, turn, memory_order_release); }
static void say_out(void) { atomic_store_explicit(&all->progress[rank].out, turn, memory_order_release); }

static void barrier(void) {
  ++turn;
  say_in();
  for (int peer = 0; peer < size; ++peer) wait_for(&all->progress[peer].in, turn);
  say_out();
  for (int peer = 0; peer < size; ++peer) wait_for(&all->progress[peer].out, turn);
}

static void add(float *restrict to, const float *restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

static void put(enum Way way, float *restrict to, const float *restrict from, size_t count) {
#if defined(__AVX512F__) && defined(__CLDEMOTE__)
  if (way != MEMCPY && count % 16 == 0) {
    for (size_t i = 0; i < count; i += 16) {
      if (way == STREAM) _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
      else _mm512_storeu_ps(to + i, _mm512_loadu_ps(from + i));
    }
    for (size_t i = 0; way == DEMOTE && i < count; i += 16) _cldemote(to + i);
    if (way == STREAM) _mm_sfence();
    return;
  }
#endif
  memcpy(to, from, count * sizeof(float));
}

static size_t part(size_t length, int owner) { return length * (size_t)owner / (size_t)size / 16 * 16; }
static size_t end_of(size_t length, int owner) { return owner + 1 == size ? length : part(length, owner + 1); }

/* `part_count`: elements that a rank sums at a time. */
static void through_rooms(enum Way way, float *own, size_t count, size_t part_count) {
  const size_t chunk = part_count * (size_t)size;
  for (size_t at = 0; at < count; at += chunk) {
    const size_t length = count - at < chunk ? count - at : chunk;
    const size_t half = (turn % 2) * chunk;
    const size_t mine = part(length, rank), end = end_of(length, rank);
    ++turn;
    put(way, rooms[rank] + half, own + at, mine);
    put(way, rooms[rank] + half + end, own + at + end, length - end);
    say_in();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      wait_for(&all->progress[peer].in, turn);
      add(own + at + mine, rooms[peer] + half + mine, end - mine);
    }
    put(way, rooms[rank] + half + mine, own + at + mine, end - mine);
    say_out();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      wait_for(&all->progress[peer].out, turn);
      const size_t theirs = part(length, peer);
      memcpy(own + at + theirs, rooms[peer] + half + theirs, (end_of(length, peer) - theirs) * sizeof(float));
    }
  }
}

static void read_peer(int peer, float *to, const float *from, size_t count) {
  const struct iovec local = {to, count * sizeof(float)}, remote = {(void *)from, count * sizeof(float)};
  if (process_vm_readv(all->pids[peer], &local, 1, &remote, 1, 0) == (ssize_t)(count * sizeof(float))) return;
  perror("process_vm_readv");
  exit(1);
}

/* The arrays have the same address in all processes. */
static void through_kernel(float *own, size_t count, size_t block) {
  const size_t mine = part(count, rank), end = end_of(count, rank);
  barrier();
  for (size_t at = mine; at < end; at += block) {
    const size_t length = end - at < block ? end - at : block;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      read_peer(peer, rooms[rank], own + at, length);
      add(own + at, rooms[rank], length);
    }
  }
  barrier();
  for (int peer = 0; peer < size; ++peer) {
    const size_t theirs = part(count, peer), length = end_of(count, peer) - theirs;
    if (peer != rank && length > 0) read_peer(peer, own + theirs, own + theirs, length);
  }
  barrier();
}

static int by_value(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static void check_sum(const float *own, size_t count, const char *name) {
  const float sum = (float)size * (float)(size + 1) / 2; /* each rank gave its number, from 1 */
  for (size_t i = 0; i < count; ++i) {
    if (own[i] == sum) continue;
    fprintf(stderr, "%s: element %zu is %g on rank %d, not %g\n", name, i, own[i], rank, sum);
    exit(1);
  }
}

static void run(enum Way way, float *own, size_t count, size_t chunk_bytes) {
  if (way == READV) through_kernel(own, count, chunk_bytes / sizeof(float));
  else through_rooms(way, own, count, chunk_bytes / sizeof(float));
}

/* All ways take turns in each round. */
static void measure(float *own, size_t count, int rounds) {
  static double times[NUM_WAYS][NUM_CHUNKS][MOST_ROUNDS];
  for (int round = -1; round < rounds; ++round) {
    for (int way = 0; way < NUM_WAYS; ++way) {
      for (int chunk = 0; chunk < NUM_CHUNKS; ++chunk) {
        for (size_t i = 0; i < count; ++i) own[i] = (float)(rank + 1);
        barrier();
        const double begin = now_us();
        run((enum Way)way, own, count, CHUNKS[chunk]);
        if (round >= 0) times[way][chunk][round] = now_us() - begin;
        else check_sum(own, count, NAMES[way]);
      }
    }
  }
  for (int way = 0; rank == 0 && way < NUM_WAYS; ++way) {
    for (int chunk = 0; chunk < NUM_CHUNKS; ++chunk) {
      double *of = times[way][chunk];
      qsort(of, (size_t)rounds, sizeof(double), by_value);
      printf("%zu %s %zu %.1f\n", count * sizeof(float), NAMES[way], CHUNKS[chunk] >> 10, of[rounds / 2]);
    }
  }
}

static void *map(size_t bytes, int flags) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (at != MAP_FAILED) return at;
  perror("mmap");
  exit(1);
}

int main(int argc, char **argv) {
  size = argc > 3 ? atoi(argv[1]) : 0;
  const int rounds = argc > 3 ? atoi(argv[2]) : 0;
  if (size < 2 || size > MOST_RANKS || rounds < 1 || rounds > MOST_ROUNDS) {
    fprintf(stderr, "usage: limits RANKS ROUNDS BYTES...\n");
    return 2;
  }
  size_t most = 0;
  for (int i = 3; i < argc; ++i) most = most > strtoull(argv[i], NULL, 10) ? most : strtoull(argv[i], NULL, 10);
  all = map(sizeof *all, MAP_SHARED);
  for (int i = 0; i < size; ++i) rooms[i] = map(ROOM_BYTES, MAP_SHARED);
  float *own = map(most + 64, MAP_PRIVATE);
  for (int i = 1; i < size && rank == 0; ++i) {
    if (fork() == 0) rank = i;
  }
  prctl(PR_SET_PDEATHSIG, 9);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  all->pids[rank] = getpid();
  barrier();
  for (int i = 3; i < argc; ++i) measure(own, strtoull(argv[i], NULL, 10) / sizeof(float), rounds);
  fflush(stdout);
  if (rank != 0) _exit(0);
  int status = 0, failed = 0;
  while (wait(&status) > 0) failed |= status;
  return failed != 0;
}
