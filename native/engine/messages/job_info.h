// What every part of the engine knows of the job: who this rank is, what the ranks are called, where messages go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace hvd {

struct JobInfo {
  int rank = 0;
  int size = 1;
  int num_local = 1;                    // ranks on this host
  std::vector<std::string> rank_names;  // what messages say of a rank, "host-a:4711"; may be shorter than the job
  LogSink log;
  std::shared_ptr<const Clock> clock;

  // Such as "rank 3 (host-a:4711)".
  [[nodiscard]] std::string name_of_rank(int other) const {
    const auto index = static_cast<size_t>(other);
    std::string name = "rank " + std::to_string(other);
    if (index < rank_names.size()) name += " (" + rank_names[index] + ")";
    return name;
  }
};

// What is told when the program has closed what does not belong to it.
[[nodiscard]] inline Error closed_descriptors(const JobInfo& job) {
  return {ErrorKind::kInternal, job.name_of_rank(job.rank) +
                                    " cannot wake the ranks of its host, or itself: its program closed descriptors of "
                                    "Horovod's engine, as os.closerange() and code that makes a daemon do. Close only "
                                    "what the program opened, or do it before hvd.init()"};
}

}  // namespace hvd
