// What Python calls in each library of kernels, by ctypes, to tell it of jobs. Jobs have numbers; 0 is the default one.
#include <string>
#include <utility>

#include "bindings/kernels/jobs.h"

namespace {

using hvd::kernels::Job;
using hvd::kernels::jobs;

// Valid until the thread calls again; null for an empty text.
const char* lend(std::string text) {
  thread_local std::string lent;
  lent = std::move(text);
  return lent.empty() ? nullptr : lent.c_str();
}

}  // namespace

extern "C" {

#define HVD_EXPORT __attribute__((visibility("default")))

// Why this library does not work with the module that gave the interface, or null. Before anything else is called.
HVD_EXPORT const char* horovod_kernels_mismatch(const HvdInterface* interface) {
  return lend(hvd::kernels::mismatch_of(*interface));
}

// Takes over the reference to the engine.
HVD_EXPORT void horovod_kernels_begin_job(int64_t job, const HvdInterface* interface, HvdEngine* engine, int rank,
                                          int local_rank, int local_size) {
  jobs().begin(job, std::make_shared<Job>(interface, engine, rank, local_rank, local_size));
}

HVD_EXPORT void horovod_kernels_end_job(int64_t job) { jobs().end(job); }

HVD_EXPORT void horovod_kernels_set_process_set(int64_t job, int64_t number, uint32_t engine_id, const int* ranks,
                                                int size, int set_rank) {
  const auto found = jobs().find(job);
  if (found == nullptr) return;
  found->set_process_set(number, {engine_id, std::vector<int>(ranks, ranks + size), set_rank});
}

HVD_EXPORT void horovod_kernels_forget_process_set(int64_t job, int64_t number) {
  const auto found = jobs().find(job);
  if (found != nullptr) found->forget_process_set(number);
}
}
