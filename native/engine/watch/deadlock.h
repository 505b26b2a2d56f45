// Whether ranks wait for each other for ever: pure functions of what they tell of themselves.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/messages/position_report.h"
#include "engine/watch/threads.h"

namespace hvd {

// What the engine of a rank knows of its callers, by pthread_self().
struct Callers {
  std::set<uint64_t> waiting;     // threads that wait for an operation
  std::set<uint64_t> submitters;  // that have ever submitted one
  bool kernels = false;           // operations of a framework's kernels are pending, for which no thread may wait
};

// Whether nothing that a rank's threads may do can change what it waits for.
//
// `threads`: of its interpreter, none if it did not tell. A thread that is idle, as one that waits for work in a queue,
// cannot be the one that comes with the missing operation, unless it has submitted some before. One that sleeps until
// another thread of the process wakes it cannot either, if no thread of the process goes on; nor one that sleeps in a
// framework, which looks for signals from time to time; the same holds for the threads of a framework, which submit
// what a program of it has come to. An idle thread that runs, or reads from another process, may wake one of those that
// sleep. `look` at all threads is taken if it matters; those of the engine's own, and that wait for it, do not count.
[[nodiscard]] bool is_held(const std::optional<std::vector<InterpreterThread>>& threads, const Callers& callers,
                           const std::function<ThreadSleeps()>& look, const std::set<pid_t>& own);

// Operations that do not become ready, in any process set, and where ranks are, by global rank.
struct Evidence {
  std::map<Wait, Unready> unready;
  std::map<int, PositionReport> positions;
};

// Of which ranks and operations is_deadlock() must know more. Nothing if there is no deadlock, whatever they tell.
struct OpenQuestions {
  std::set<int> ranks;
  std::set<Wait> waits;
  [[nodiscard]] bool none() const { return ranks.empty() && waits.empty(); }
};
[[nodiscard]] std::optional<OpenQuestions> open_questions(const Evidence& evidence);

// Whether all ranks that the operations lack are held by operations that can never become ready, for at least `age`:
// each of these lacks such a rank, too. A rank that is busy, or that may yet go on, is no part of a deadlock.
[[nodiscard]] bool is_deadlock(const Evidence& evidence, Duration age);

}  // namespace hvd
