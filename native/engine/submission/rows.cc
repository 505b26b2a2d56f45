#include "engine/submission/rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/submission/check.h"

namespace hvd {
namespace {

int64_t sum_of(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

bool have_equal_rows(const Buffer& a, const Buffer& b) {
  return a.dtype == b.dtype && !a.shape.empty() && !b.shape.empty() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1, b.shape.end());
}

std::string describe(const Buffer& buffer) {
  return std::string(name_of(buffer.dtype)) + " " + to_string(buffer.shape);
}

void check_splits(const Operation& operation, const std::vector<int64_t>& splits, size_t num_members) {
  if (splits.size() != num_members) {
    refuse(operation, "has " + std::to_string(splits.size()) + " splits, but the size of its process set is " +
                          std::to_string(num_members));
  }
  if (std::any_of(splits.begin(), splits.end(), [](int64_t split) { return split < 0; })) {
    refuse(operation, "a split is negative");
  }
}

// One input of an alltoall for each member is a tensor of all their rows.
void join_inputs(Operation& operation, size_t num_members) {
  const Buffers& inputs = operation.request.inputs;
  if (operation.request.splits || inputs.size() != num_members) {
    refuse(operation,
           "alltoall takes one tensor, or one for each of the " + std::to_string(num_members) + " ranks and no splits");
  }
  TensorSpec& joined = operation.spec.tensors.emplace_back();
  joined = {inputs.front().dtype, inputs.front().shape};
  joined.shape.front() = 0;
  for (const Buffer& input : inputs) {
    if (!have_equal_rows(input, inputs.front())) {
      refuse(operation, "all inputs must have one dtype and rows of one shape, but there are " +
                            describe(inputs.front()) + " and " + describe(input));
    }
    operation.state.splits.push_back(input.shape.front());
    joined.shape.front() += input.shape.front();
  }
}

void divide_input(Operation& operation, size_t num_members) {
  const Buffer& input = operation.request.inputs.front();
  const int64_t num_rows = input.shape.front();
  operation.spec.tensors.push_back({input.dtype, input.shape});
  if (operation.request.splits) {
    operation.state.splits = *operation.request.splits;
  } else {
    const auto members = static_cast<int64_t>(num_members);
    if (num_rows % members != 0) {
      refuse(operation, "without splits the first dimension, " + std::to_string(num_rows) +
                            ", must be a multiple of the number of ranks, " + std::to_string(members));
    }
    operation.state.splits.assign(num_members, num_rows / members);
  }
  check_splits(operation, operation.state.splits, num_members);
  const int64_t sum = sum_of(operation.state.splits);
  if (sum > num_rows) {
    refuse(operation, "the splits sum up to " + std::to_string(sum) + ", more than the first dimension, " +
                          std::to_string(num_rows));
  }
}

// Rows from each member, of one output of all or as the outputs of each say.
std::vector<int64_t> expected_in(const Operation& operation, std::span<const Buffer> outputs, size_t num_members) {
  const auto& given = operation.request.received_splits;
  std::vector<int64_t> rows;
  for (const Buffer& output : outputs) rows.push_back(output.shape.front());
  if (outputs.size() == num_members && !given) return rows;
  const auto members = static_cast<int64_t>(num_members);
  if (outputs.size() == 1 && !given && rows.front() % members == 0) {
    return std::vector<int64_t>(num_members, rows.front() / members);
  }
  const bool fits = given && (outputs.size() == 1 ? sum_of(*given) == rows.front() : *given == rows);
  if (fits) return *given;
  refuse(operation, given
                        ? "the received splits do not divide the rows of the output, whose shape is " +
                              to_string(outputs.front().shape)
                        : "without received splits the first dimension of the output, " + std::to_string(rows.front()) +
                              ", must be a multiple of the number of ranks, " + std::to_string(members));
}

// How many outputs there are for each tensor.
size_t outputs_per_tensor(const Operation& operation, size_t num_members) {
  const size_t num_tensors = operation.spec.tensors.size();
  const size_t num_outputs = operation.request.outputs.size();
  if (num_outputs == num_tensors || num_outputs == num_tensors * num_members) return num_outputs / num_tensors;
  refuse(operation,
         "needs one output for each tensor, or one for each tensor and rank: " + std::to_string(num_tensors) + " or " +
             std::to_string(num_tensors * num_members) + ", but there are " + std::to_string(num_outputs));
}

void check_outputs_of_rows(Operation& operation, size_t num_members) {
  const SubmitRequest& request = operation.request;
  const auto& given = request.received_splits;
  if (given) {
    if (operation.spec.tensors.size() != 1) refuse(operation, "received splits are those of one tensor");
    check_splits(operation, *given, num_members);
  }
  if (request.outputs.empty()) {
    if (given) operation.state.expected = *given;
    return;
  }
  const size_t per_tensor = outputs_per_tensor(operation, num_members);
  for (size_t i = 0; i < operation.spec.tensors.size(); ++i) {
    const Buffer& input = request.inputs[i];
    const std::span<const Buffer> outputs = std::span(request.outputs).subspan(i * per_tensor, per_tensor);
    for (const Buffer& output : outputs) {
      if (have_equal_rows(output, input)) continue;
      refuse(operation, "the outputs must have the dtype and the rows of the input, " + describe(input) +
                            ", but one is " + describe(output));
    }
    const std::vector<int64_t> rows = expected_in(operation, outputs, num_members);
    operation.state.expected.insert(operation.state.expected.end(), rows.begin(), rows.end());
  }
}

// Where this rank's own rows of a tensor of an allgather go.
const std::byte* own_place(const Operation& operation, size_t tensor, size_t num_members) {
  const Buffers& outputs = operation.request.outputs;
  const auto rank = static_cast<size_t>(operation.state.set_rank);
  if (outputs.size() > operation.spec.tensors.size()) return outputs[tensor * num_members + rank].data;
  const Buffer& output = outputs[tensor];
  const auto rows = operation.state.expected.begin() + static_cast<std::ptrdiff_t>(tensor * num_members);
  const int64_t before = std::accumulate(rows, rows + static_cast<std::ptrdiff_t>(rank), int64_t{0});
  const int64_t num_rows = output.shape.front();
  return num_rows == 0 ? output.data
                       : output.data + output.bytes() / static_cast<size_t>(num_rows) * static_cast<size_t>(before);
}

// The memory of the outputs, in rising order. Which of two ranks' rows would be in shared memory depends on their
// times.
std::vector<std::pair<uintptr_t, uintptr_t>> memory_of_outputs(const Operation& operation) {
  std::vector<std::pair<uintptr_t, uintptr_t>> taken;
  for (const Buffer& output : operation.request.outputs) {
    const auto begin = reinterpret_cast<uintptr_t>(output.data);
    if (output.bytes() > 0) taken.emplace_back(begin, begin + output.bytes());
  }
  std::sort(taken.begin(), taken.end());
  for (size_t i = 1; i < taken.size(); ++i) {
    if (taken[i].first < taken[i - 1].second) {
      refuse(operation, "two outputs share memory: give each rows of its own");
    }
  }
  return taken;
}

// A value that is yet to be sent must not be overwritten by one that arrives.
void copy_shared_inputs(Operation& operation, size_t num_members) {
  Buffers& inputs = operation.request.inputs;
  const std::vector<std::pair<uintptr_t, uintptr_t>> taken = memory_of_outputs(operation);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Buffer& input = inputs[i];
    const auto begin = reinterpret_cast<uintptr_t>(input.data);
    const auto after = std::lower_bound(taken.begin(), taken.end(), begin + input.bytes(),
                                        [](const auto& range, uintptr_t end) { return range.first < end; });
    const bool shared = input.bytes() > 0 && after != taken.begin() && std::prev(after)->second > begin;
    if (!shared || (operation.spec.kind == OpKind::kAllgather && own_place(operation, i, num_members) == input.data)) {
      continue;
    }
    const OwnedArray& copy = operation.state.scratch.emplace_back(make_array(input.dtype, input.shape));
    std::memcpy(copy.data.get(), input.data, input.bytes());
    input.data = copy.data.get();
  }
}

}  // namespace

void check_rows(Operation& operation, size_t num_members) {
  const SubmitRequest& request = operation.request;
  for (const Buffer& input : request.inputs) {
    if (!input.shape.empty()) continue;
    refuse(operation,
           std::string(name_of(operation.spec.kind)) + " works along the first dimension, but the tensor is a scalar");
  }
  if (operation.spec.kind == OpKind::kAllgather) {
    for (const Buffer& input : request.inputs) operation.spec.tensors.push_back({input.dtype, input.shape});
  } else if (request.inputs.size() == 1) {
    divide_input(operation, num_members);
  } else {
    join_inputs(operation, num_members);
  }
  if (operation.spec.on_gpu && (!request.outputs.empty() || request.inputs.size() > operation.spec.tensors.size())) {
    throw Error(ErrorKind::kUnsupported, operation.spec.name +
                                             ": tensors on GPUs are gathered and exchanged into "
                                             "memory of the engine only; submit it without outputs");
  }
  check_outputs_of_rows(operation, num_members);
  if (!request.outputs.empty()) copy_shared_inputs(operation, num_members);
}

}  // namespace hvd
