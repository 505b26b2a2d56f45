// The job that this process takes part in, told by Python. Operations look it up when they run, so graphs outlive jobs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/c_interface.h"

namespace hvd::tensorflow {

// A process set as this rank sees it.
struct Members {
  uint32_t engine_id = 0;
  std::vector<int> ranks;  // global, rising
  int set_rank = -1;       // of this rank; negative if it is no member
};

class Job {
 public:
  Job(const HvdInterface* interface, HvdEngine* engine, int rank, int local_rank, int local_size)
      : interface(interface), engine(engine), rank(rank), local_rank(local_rank), local_size(local_size) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { interface->release_engine(engine); }

  const HvdInterface* const interface;
  HvdEngine* const engine;
  const int rank;
  const int local_rank;
  const int local_size;
};

// The current job, null while there is none.
[[nodiscard]] std::shared_ptr<const Job> current_job();

// A process set of the current job by its public number.
[[nodiscard]] std::optional<Members> find_process_set(int64_t number);

}  // namespace hvd::tensorflow
