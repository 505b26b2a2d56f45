// Alltoall. Each frame of each pair (sender, receiver) is a lane of its own, with one send and one receive.
//
// number = (frame index x size + distance from sender to receiver) x size + sender. It follows without a look at
// other ranks' blocks; and by rising number everybody sends first to rank + 1, then to rank + 2, so that
// no rank is overrun.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

using Matrix = std::vector<std::vector<int64_t>>;

// The blocks between this rank and one peer on the way out and one on the way in.
struct Exchange {
  int distance;  // in ranks
  int to;
  int from;
  int64_t sent;           // elements
  int64_t received;       // elements
  int64_t input_offset;   // of the block to `to`
  int64_t output_offset;  // of the block from `from`
};

// All ranks look at the whole matrix, so that they agree on whether it can be planned.
int64_t largest_block(const PlanContext& context, const Matrix& counts) {
  if (counts.size() != static_cast<size_t>(context.size)) {
    throw Error(ErrorKind::kInternal, "an alltoall of " + std::to_string(context.size) + " ranks was given " +
                                          std::to_string(counts.size()) + " rows of counts; please report this");
  }
  int64_t largest = 0;
  for (const std::vector<int64_t>& row : counts) {
    check_counts(context, row);
    largest = std::max(largest, *std::max_element(row.begin(), row.end()));
  }
  return largest;
}

// By distance: first this rank's own block, then rank + 1 on the way out and rank - 1 on the way in, ...
std::vector<Exchange> exchanges_of(const PlanContext& context, const Matrix& counts) {
  const std::vector<int64_t>& sent = counts[static_cast<size_t>(context.rank)];
  std::vector<int64_t> received;
  received.reserve(counts.size());
  for (const std::vector<int64_t>& row : counts) received.push_back(row[static_cast<size_t>(context.rank)]);
  const std::vector<int64_t> input_offsets = offsets_of(sent);
  const std::vector<int64_t> output_offsets = offsets_of(received);
  std::vector<Exchange> exchanges;
  exchanges.reserve(counts.size());
  for (int distance = 0; distance < context.size; ++distance) {
    const int to = rank_after(context, context.rank, distance);
    const int from = rank_after(context, context.rank, -distance);
    const auto out = static_cast<size_t>(to);
    const auto in = static_cast<size_t>(from);
    exchanges.push_back({distance, to, from, sent[out], received[in], input_offsets[out], output_offsets[in]});
  }
  return exchanges;
}

Lane send_lane(const PlanContext& context, const Exchange& exchange, uint32_t row, int64_t index) {
  const Range frame = frame_of(exchange.sent, context.chunk, index);
  const Range source = moved(frame, exchange.input_offset);
  Lane lane{.number = row + static_cast<uint32_t>(context.rank), .steps = {}};
  if (exchange.to == context.rank) {
    lane.steps.push_back(store_own(source, moved(frame, exchange.output_offset), {}));
  } else {
    lane.steps.push_back(send_own(source, source, {exchange.to}));
  }
  return lane;
}

Lane receive_lane(const PlanContext& context, const Exchange& exchange, uint32_t row, int64_t index) {
  const Range frame = frame_of(exchange.received, context.chunk, index);
  Lane lane{.number = row + static_cast<uint32_t>(exchange.from), .steps = {}};
  lane.steps.push_back(store_received(exchange.from, moved(frame, exchange.output_offset), {}));
  return lane;
}

// Lanes of the frames `index` between one pair on the way out and one on the way in, the lower number first.
void add_lanes(const PlanContext& context, const Exchange& exchange, uint32_t row, int64_t index, Plan& plan) {
  const bool sends = index < num_frames(exchange.sent, context.chunk);
  const bool receives = exchange.from != context.rank && index < num_frames(exchange.received, context.chunk);
  const bool receives_first = exchange.from < context.rank;
  if (receives && receives_first) plan.lanes.push_back(receive_lane(context, exchange, row, index));
  if (sends) plan.lanes.push_back(send_lane(context, exchange, row, index));
  if (receives && !receives_first) plan.lanes.push_back(receive_lane(context, exchange, row, index));
}

size_t num_lanes(const PlanContext& context, const std::vector<Exchange>& exchanges) {
  int64_t lanes = 0;
  for (const Exchange& exchange : exchanges) {
    lanes += num_frames(exchange.sent, context.chunk);
    if (exchange.from != context.rank) lanes += num_frames(exchange.received, context.chunk);
  }
  return static_cast<size_t>(lanes);
}

}  // namespace

Plan plan_alltoall(const PlanContext& context, const Matrix& counts) {
  check_context(context);
  const int64_t num_rows = num_frames(largest_block(context, counts), context.chunk);
  const int64_t size = context.size;
  check_num_lanes(num_rows, context);  // first alone: the product of an absurd number could overflow
  check_num_lanes(num_rows * size * size, context);
  std::vector<Exchange> exchanges = exchanges_of(context, counts);
  Plan plan;
  plan.lanes.reserve(num_lanes(context, exchanges));
  for (int64_t index = 0; !exchanges.empty(); ++index) {
    const int64_t moved_before = index * context.chunk;
    std::erase_if(exchanges, [=](const Exchange& exchange) {
      return exchange.sent <= moved_before && exchange.received <= moved_before;
    });
    for (const Exchange& exchange : exchanges) {
      const auto row = static_cast<uint32_t>((index * size + exchange.distance) * size);
      add_lanes(context, exchange, row, index, plan);
    }
  }
  return plan;
}

}  // namespace hvd
