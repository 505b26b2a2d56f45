#include "engine/submission/automatic_quantization.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

namespace hvd {
namespace {

// That links of every kind take, so that the choice is the same whatever connects the ranks.
constexpr int64_t kFrameBytes = int64_t{32} << 10;

std::string in_words(const char* format, double number) {
  char text[32];
  std::snprintf(text, sizeof(text), format, number);
  return text;
}

std::string rate_in_words(double bytes_per_s) {
  const double bits = 8 * bytes_per_s;
  return bits >= 1e9 ? in_words("%.1f Gbit/s", bits / 1e9) : in_words("%.0f Mbit/s", bits / 1e6);
}

}  // namespace

AutomaticQuantization::AutomaticQuantization(const JobInfo& job, std::vector<int> hosts, bool deterministic,
                                             bool possible, const CostConstants& costs)
    : job_(job), hosts_(std::move(hosts)), deterministic_(deterministic), possible_(possible), costs_(costs) {}

Quantization AutomaticQuantization::choose(uint32_t set, const std::vector<int>& members) {
  {
    const auto chosen = chosen_.lock();
    if (const auto found = chosen->find(set); found != chosen->end()) return found->second;
  }
  const Choice choice = choice_of(members);
  const bool is_first = chosen_.lock()->emplace(set, choice.quantization).second;
  if (is_first && members.front() == job_.rank) tell(choice);
  return choice.quantization;
}

AutomaticQuantization::Choice AutomaticQuantization::choice_of(const std::vector<int>& members) const {
  if (!possible_) return {.reason = "MPI moves the tensors"};
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(hosts_[static_cast<size_t>(member)]);
  const CostTopology topology = topology_of(hosts, costs_);
  if (topology.hosts() == 1) return {.reason = "all ranks are on one host"};
  const auto is_known = [this](int host) {
    const auto index = static_cast<size_t>(host);
    return index < costs_.link_bytes_per_s.size() && costs_.link_bytes_per_s[index] > 0;
  };
  if (!std::all_of(hosts.begin(), hosts.end(), is_known)) {
    return {.reason = "the speed of the network between the hosts is not known"};
  }
  const QuantizingGain gain = gain_of_quantizing(topology, deterministic_, kFrameBytes, costs_);
  std::string reason = std::to_string(topology.hosts()) + " hosts at " + rate_in_words(gain.link_bytes_per_s) +
                       " reduce 64 MiB of float32 in about " + in_words("%.2g", gain.plain_s) +
                       " s as they are, and in " + in_words("%.2g", gain.quantized_s) + " s with 8 bits between hosts";
  if (gain.pays()) return {.quantization = Quantization::kInt8, .reason = std::move(reason)};
  reason += gain.link_bytes_per_s < kFastLink ? ", which is not half of it" : "; links of 4 Gbit/s are fast enough";
  return {.reason = std::move(reason)};
}

// That values lose precision is something to know.
void AutomaticQuantization::tell(const Choice& choice) const {
  const bool compresses = choice.quantization != Quantization::kNone;
  job_.log(compresses ? LogLevel::kWarning : LogLevel::kInfo,
           std::string("Compression.auto ") + (compresses ? "sends int8 between hosts: " : "compresses nothing: ") +
               choice.reason);
}

}  // namespace hvd
