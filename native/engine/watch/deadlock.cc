#include "engine/watch/deadlock.h"

#include <algorithm>

namespace hvd {

bool is_held(const std::optional<std::vector<InterpreterThread>>& threads, const Callers& callers,
             const std::function<ThreadSleeps()>& look, const std::set<pid_t>& own) {
  if (!threads || (callers.waiting.empty() && !callers.kernels)) return false;
  const auto is_done_with = [&](const InterpreterThread& thread) {
    return callers.waiting.contains(thread.id) || (thread.idle && !callers.submitters.contains(thread.id));
  };
  if (!callers.kernels && std::all_of(threads->begin(), threads->end(), is_done_with)) return true;
  ThreadSleeps others = look();
  for (const pid_t thread : own) others.erase(thread);
  for (const InterpreterThread& thread : *threads) {
    const auto found = others.find(thread.native);
    const bool sleeps = found != others.end() && (found->second == ThreadSleep::kForOthers ||
                                                  (thread.in_framework && found->second == ThreadSleep::kForEvents));
    if (!sleeps && !is_done_with(thread)) return false;
    const bool reads = found != others.end() && found->second == ThreadSleep::kNot && !thread.in_framework;
    if (reads && !callers.waiting.contains(thread.id)) return false;
    if (found != others.end()) others.erase(found);
  }
  return std::none_of(others.begin(), others.end(),
                      [](const auto& thread) { return thread.second == ThreadSleep::kNot; });
}

std::optional<OpenQuestions> open_questions(const Evidence& evidence) {
  OpenQuestions open;
  for (const auto& [wait, unready] : evidence.unready) {
    if (unready.missing.empty()) return std::nullopt;
    for (const int rank : unready.missing) {
      const auto found = evidence.positions.find(rank);
      if (found == evidence.positions.end()) {
        open.ranks.insert(rank);
        continue;
      }
      const PositionReport& position = found->second;
      if (!position.held || position.waits.empty()) return std::nullopt;
      for (const Wait& each : position.waits) {
        if (!evidence.unready.contains(each)) open.waits.insert(each);
      }
    }
  }
  return open;
}

bool is_deadlock(const Evidence& evidence, Duration age) {
  const std::optional<OpenQuestions> open = open_questions(evidence);
  if (evidence.unready.empty() || !open || !open->none()) return false;
  const auto has_waited = [&](const Wait& wait) { return evidence.unready.at(wait).age >= age; };
  return std::all_of(evidence.unready.begin(), evidence.unready.end(), [&](const auto& entry) {
    const std::vector<int32_t>& missing = entry.second.missing;
    return std::all_of(missing.begin(), missing.end(), [&](int rank) {
      const std::vector<Wait>& waits = evidence.positions.at(rank).waits;
      return std::all_of(waits.begin(), waits.end(), has_waited);
    });
  });
}

}  // namespace hvd
