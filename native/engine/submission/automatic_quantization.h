// What Compression.auto means in a process set: 8 bits between hosts where the cost model says that this pays. It goes
// by what all ranks have been told alike, the speed of the links that was measured when the job started, so that all
// choose the same. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/quantization.h"
#include "engine/messages/job_info.h"
#include "engine/submission/locked.h"
#include "plan/cost.h"

namespace hvd {

class AutomaticQuantization {
 public:
  // `hosts`: of each rank of the job. `possible`: whether this engine quantizes at all.
  AutomaticQuantization(const JobInfo& job, std::vector<int> hosts, bool deterministic, bool possible,
                        const CostConstants& costs);

  // Sets have numbers that are never used again. The first member logs what is chosen, once.
  [[nodiscard]] Quantization choose(uint32_t set, const std::vector<int>& members);

 private:
  struct Choice {
    Quantization quantization = Quantization::kNone;
    std::string reason;
  };

  [[nodiscard]] Choice choice_of(const std::vector<int>& members) const;
  void tell(const Choice& choice) const;

  const JobInfo& job_;
  const std::vector<int> hosts_;
  const bool deterministic_;
  const bool possible_;
  const CostConstants costs_;
  Guarded<std::map<uint32_t, Quantization>> chosen_;
};

}  // namespace hvd
