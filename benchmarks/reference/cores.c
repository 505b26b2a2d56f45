// Whether two cores are at their best: prints microseconds in which one fills 256 KiB and the other adds them up, at
// best, and microseconds in which the slower of both does a fixed number of operations, in the median.
//
//   cores SECONDS
//
// In a virtual machine both change while nothing else runs there: its processors move to other cores of the host,
// which may share no cache, or whose second hardware thread does other work. Built with: cc -O2 -pthread.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 1 << 18, OPERATIONS = 100000, LOOPS = 15 };

static _Alignas(64) uint64_t data[BYTES / sizeof(uint64_t)];
static _Alignas(64) atomic_uint turns;  // odd: the filler's
static _Alignas(64) atomic_int stop;
static double loop_us[2];

// The first or the last core that the process may use.
static void pin(int last) {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (!last && CPU_COUNT(&one) > 0) break;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
  }
  pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static int compare(const void* a, const void* b) {
  const double difference = *(const double*)a - *(const double*)b;
  return (difference > 0) - (difference < 0);
}

// Several independent chains, which leave a second hardware thread little.
static double median_loop_us(void) {
  double took[LOOPS];
  volatile uint64_t result;
  uint64_t state[6] = {1, 2, 3, 4, 5, 6};
  for (int i = 0; i < LOOPS; ++i) {
    const double began = now_us();
    for (int j = 0; j < OPERATIONS; ++j) {
      for (int k = 0; k < 6; ++k) state[k] = state[k] * 3 + (state[k] >> 7) + (uint64_t)j;
    }
    result = state[0] ^ state[1] ^ state[2] ^ state[3] ^ state[4] ^ state[5];
    took[i] = now_us() - began;
  }
  (void)result;
  qsort(took, LOOPS, sizeof(double), compare);
  return took[LOOPS / 2];
}

static void* fill(void* unused) {
  pin(1);
  loop_us[1] = median_loop_us();
  while (!stop) {
    if (turns % 2 == 0) continue;
    memset(data, (int)turns, BYTES);
    ++turns;
  }
  return unused;
}

int main(int argc, char** argv) {
  const double most_us = 1e6 * (argc > 1 ? strtod(argv[1], NULL) : 0.02);
  pthread_t filler;
  if (pthread_create(&filler, NULL, fill, NULL) != 0) return 1;
  pin(0);
  loop_us[0] = median_loop_us();
  volatile uint64_t sum = 0;
  double best_us = 1e12;
  for (const double end = now_us() + most_us; now_us() < end;) {
    const double began = now_us();
    ++turns;
    while (turns % 2 == 1) {
    }
    for (size_t i = 0; i < BYTES / sizeof(uint64_t); ++i) sum += data[i];
    const double took = now_us() - began;
    if (took < best_us) best_us = took;
  }
  stop = 1;
  pthread_join(filler, NULL);
  printf("%.1f %.1f\n", best_us, loop_us[0] > loop_us[1] ? loop_us[0] : loop_us[1]);
  return 0;
}
