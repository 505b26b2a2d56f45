// From one rank to another. Each frame is a lane.
#include <string>

#include "base/error.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

constexpr uint32_t kFirstLane = uint32_t{1} << 31;

}  // namespace

Plan plan_transfer(const PlanContext& context, int64_t count) {
  check_context(context);
  const int64_t frames = num_frames(count, context.chunk);
  if (context.size != 2 || count < 0 || frames > int64_t{kFirstLane}) {
    throw Error(ErrorKind::kInternal, "a transfer of " + std::to_string(count) + " elements between " +
                                          std::to_string(context.size) + " ranks was planned; please report this");
  }
  Plan plan;
  plan.lanes.resize(static_cast<size_t>(frames));
  for (int64_t index = 0; index < frames; ++index) {
    Lane& lane = plan.lanes[static_cast<size_t>(index)];
    const Range range = frame_of(count, context.chunk, index);
    lane.number = kFirstLane + static_cast<uint32_t>(index);
    lane.steps.push_back(context.rank == 0 ? send_own(range, range, {1}) : store_received(0, range, {}));
  }
  return plan;
}

}  // namespace hvd
