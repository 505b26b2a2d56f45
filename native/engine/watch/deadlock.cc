#include "engine/watch/deadlock.h"

#include <algorithm>
#include <string>

namespace hvd {

bool is_held(const std::optional<std::vector<InterpreterThread>>& threads, const std::set<uint64_t>& waiting,
             const std::set<uint64_t>& submitters) {
  if (!threads || waiting.empty()) return false;
  return std::all_of(threads->begin(), threads->end(), [&](const InterpreterThread& thread) {
    return waiting.contains(thread.id) || (thread.idle && !submitters.contains(thread.id));
  });
}

bool is_deadlock(uint32_t set, const std::vector<Stall>& stalls, const std::map<int, PositionReport>& positions,
                 Duration age) {
  std::map<std::string, const Stall*> by_name;
  std::set<int> missing;
  for (const Stall& stall : stalls) {
    by_name[stall.name] = &stall;
    missing.insert(stall.missing.begin(), stall.missing.end());
  }
  // If every missing rank is held by names that only missing ranks could complete, none of them will ever come.
  const auto never_ready = [&](const Wait& wait) {
    const auto found = by_name.find(wait.name);
    return wait.set == set && found != by_name.end() && found->second->age >= age && !found->second->missing.empty();
  };
  return !missing.empty() && std::all_of(missing.begin(), missing.end(), [&](int member) {
    const auto position = positions.find(member);
    if (position == positions.end() || !position->second.held) return false;
    const std::vector<Wait>& waits = position->second.waits;
    return !waits.empty() && std::all_of(waits.begin(), waits.end(), never_ready);
  });
}

}  // namespace hvd
