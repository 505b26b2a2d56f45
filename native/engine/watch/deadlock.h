// Whether ranks wait for each other for ever: a pure function of what the missing ranks tell of themselves.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/agreement/negotiator.h"
#include "engine/messages/position_report.h"

namespace hvd {

// Whether nothing that a rank's threads may do can change what it waits for.
//
// `threads`: of its interpreter, none if it did not tell; `waiting`: those that wait for an operation; `submitters`:
// those that have ever submitted one. A thread that is idle, as one that waits for work in a queue, cannot be the one
// that comes with the missing operation, unless it has submitted some before.
[[nodiscard]] bool is_held(const std::optional<std::vector<InterpreterThread>>& threads,
                           const std::set<uint64_t>& waiting, const std::set<uint64_t>& submitters);

// Whether all missing ranks are held by operations of this process set that can never become ready, for at least `age`.
//
// `stalls`: all names of the set that some members announced and others did not. `positions`: by set rank, of all that
// are missing. A rank that is busy, or that somebody of another set may let go on, is no part of a deadlock.
[[nodiscard]] bool is_deadlock(uint32_t set, const std::vector<Stall>& stalls,
                               const std::map<int, PositionReport>& positions, Duration age);

}  // namespace hvd
