// Checks that one rank can make alone: of its own operations before anything is sent, and of what peers say before
// memory follows from it. Peers are trusted to be ranks of this job, not to be free of faults.
#pragma once

#include "engine/submission/operation.h"

namespace hvd {

// Throws Error (kUsage) that names the operation.
[[noreturn]] void refuse(const Operation& operation, const std::string& what);

// Completes the operation's request from its buffers. Throws Error (kUsage, …) if it makes no sense for a process set
// with these members (global ranks).
void check_operation(Operation& operation, const std::vector<int>& members);

// The device of all tensors of the operation; the CPU if there is none. Throws Error if they are on several, or on one
// that the operation does not take.
[[nodiscard]] int common_device(const Operation& operation);

// Throws Error (kInternal) if no rank can have submitted this request; `from` says who sent it.
void check_received(const RequestSpec& spec, const std::string& from);

// Whether these rows of a result, of so many bytes each, fit into memory that can be asked for; none may be negative.
[[nodiscard]] bool are_rows(const std::vector<int64_t>& rows, int64_t bytes_per_row);

// Whether a weighted average can be divided by this sum of the weights.
[[nodiscard]] bool is_total_weight(double sum);

}  // namespace hvd
