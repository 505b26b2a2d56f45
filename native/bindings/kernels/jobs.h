// The jobs that kernels of this library work for, told by Python. Kernels look their job up by its number when they
// run, so that graphs and compiled programs outlive jobs, and several engines live in one process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings/c_interface.h"

namespace hvd::kernels {

// A process set as this rank sees it.
struct Members {
  uint32_t engine_id = 0;
  std::vector<int> ranks;  // global, rising
  int set_rank = -1;       // of this rank; negative if it is no member
};

// Why the engine's module and this library do not fit to each other, or an empty string.
[[nodiscard]] std::string mismatch_of(const HvdInterface& interface);

class Job {
 public:
  // Takes over the reference to the engine.
  Job(const HvdInterface* interface, HvdEngine* engine, int rank, int local_rank, int local_size)
      : interface(interface), engine(engine), rank(rank), local_rank(local_rank), local_size(local_size) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { interface->release_engine(engine); }

  // By the number that the user sees; 0 is that of all ranks.
  [[nodiscard]] std::optional<Members> find_process_set(int64_t number) const;
  void set_process_set(int64_t number, Members members);
  void forget_process_set(int64_t number);

  const HvdInterface* const interface;
  HvdEngine* const engine;
  const int rank;
  const int local_rank;
  const int local_size;

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, Members> process_sets_;
};

// Any thread may ask.
class Jobs {
 public:
  // Null if there is no job of this number now; 0 is the default one of this process.
  [[nodiscard]] std::shared_ptr<Job> find(int64_t number) const;
  // In the place of the job that had the number, if there is one.
  void begin(int64_t number, std::shared_ptr<Job> job);
  void end(int64_t number);

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Job>> jobs_;
};

// Those of this process. Never destroyed: kernels may run until the process ends.
[[nodiscard]] Jobs& jobs();

}  // namespace hvd::kernels
