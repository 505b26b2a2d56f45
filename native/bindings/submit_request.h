// What Python asks of the engine, from the keyword arguments of Engine.submit.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "engine/submission/operation.h"

namespace hvd::bindings {

// A name as other ranks read it. Throws Error (kUsage) if it cannot be sent.
[[nodiscard]] std::string name_from(const nanobind::str& name);

// Only what is given is looked at: a table of arguments with their defaults costs more than the rest of a submission.
// Throws TypeError for a keyword that there is not, or a value of another type.
[[nodiscard]] SubmitRequest request_from(const nanobind::kwargs& options);

// What the allreduces of a program mostly have in common: neither factors nor weight nor priority.
struct PlainReduction {
  std::string prefix;
  ReduceOp reduce_op;
  uint32_t process_set;
};

[[nodiscard]] PlainReduction plain_reduction(const nanobind::str& prefix, int reduce_op, uint32_t process_set);

// Of one tensor, whose name may be None; for a request that holds nothing yet.
void fill(SubmitRequest& request, const PlainReduction& reduction, nanobind::handle name, const Buffer& input,
          const Buffer& output, nanobind::handle call_site);

[[nodiscard]] std::string signature_of_submit();  // for type checkers

}  // namespace hvd::bindings
