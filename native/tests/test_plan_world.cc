#include "tests/test_plan_world.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace hvd::testing {
namespace {

uint64_t mixed(uint64_t seed) {
  seed += 0x9e3779b97f4a7c15u;
  seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
  seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebu;
  return seed ^ (seed >> 31);
}

struct SentFrame {
  int from;
  Range range;
  size_t values;  // where they begin in the store of values
  bool consumed = false;
  bool aside = false;  // takes up no room any more
};

struct Channel {
  std::vector<size_t> frames;                      // that take up room, oldest first
  std::vector<std::pair<size_t, size_t>> waiting;  // (rank, lane) for room
};

struct LaneState {
  size_t step = 0;
  size_t num_received = 0;
  size_t num_sent = 0;
  bool open = false;
  bool valued = false;        // `values` has an operand of the step
  bool settled = false;       // all operands are reduced, the value is stored
  size_t values = 0;          // where the value begins in the store of values
  std::vector<size_t> inbox;  // frames that arrived and are not consumed
};

struct RankState {
  std::vector<LaneState> lanes;
  std::vector<size_t> ready;  // lanes worth a try; a heap by rising number if the order is rising
  size_t num_opened = 0;
  size_t num_finished = 0;
};

class World {
 public:
  World(const Job& job, const Schedule& schedule, uint64_t seed)
      : job_(job),
        schedule_(schedule),
        random_(seed),
        size_(job.plans.size()),
        channels_(schedule.capacity == 0 ? 0 : size_ * size_),
        ranks_(size_) {}

  Outcome run();

 private:
  enum class Move : uint8_t { kMoved, kBlocked, kFinished };

  void fail(size_t rank, size_t lane, const std::string& what) const;
  uint64_t draw(uint64_t limit) { return (random_ = mixed(random_)) % limit; }
  Channel& channel(size_t from, size_t to) { return channels_[from * size_ + to]; }

  void open_lanes(size_t rank);
  void make_ready(size_t rank, size_t lane);
  size_t take_ready(size_t rank);
  bool pick_rank(size_t& rank);
  Move advance(size_t rank, size_t lane);
  bool receive(size_t rank, size_t lane, const Step& step);
  size_t find(const LaneState& state, int from) const;
  void reduce(LaneState& state, const Step& step, size_t operand);
  void reduce_own(size_t rank, size_t lane, const Step& step);
  void reduce_accumulated(size_t rank, size_t lane, const Step& step);
  void settle(size_t rank, size_t lane, const Step& step);
  bool send(size_t rank, size_t lane, const Step& step);
  void release(Channel& link);
  bool set_aside();
  void check_ends() const;

  const Job& job_;
  const Schedule& schedule_;
  uint64_t random_;
  size_t size_;
  std::vector<Channel> channels_;
  std::vector<RankState> ranks_;
  std::vector<SentFrame> frames_;
  std::vector<Value> values_;
  Outcome outcome_;
};

void World::fail(size_t rank, size_t lane, const std::string& what) const {
  throw std::runtime_error("rank " + std::to_string(rank) + ", lane " +
                           std::to_string(job_.plans[rank].lanes[lane].number) + ", step " +
                           std::to_string(ranks_[rank].lanes[lane].step) + ": " + what);
}

void World::make_ready(size_t rank, size_t lane) {
  std::vector<size_t>& ready = ranks_[rank].ready;
  ready.push_back(lane);
  if (schedule_.order == Order::kRising) std::push_heap(ready.begin(), ready.end(), std::greater<>());
}

size_t World::take_ready(size_t rank) {
  std::vector<size_t>& ready = ranks_[rank].ready;
  if (schedule_.order == Order::kRising) {
    std::pop_heap(ready.begin(), ready.end(), std::greater<>());
  } else {
    std::swap(ready[draw(ready.size())], ready.back());
  }
  const size_t lane = ready.back();
  ready.pop_back();
  return lane;
}

void World::open_lanes(size_t rank) {
  RankState& state = ranks_[rank];
  while (state.num_opened < state.lanes.size() &&
         (schedule_.window == 0 || state.num_opened - state.num_finished < schedule_.window)) {
    state.lanes[state.num_opened].open = true;
    make_ready(rank, state.num_opened++);
  }
}

bool World::pick_rank(size_t& rank) {
  rank = draw(size_);
  for (size_t left = size_; left > 0; --left) {
    if (!ranks_[rank].ready.empty()) return true;
    rank = rank + 1 < size_ ? rank + 1 : 0;
  }
  return false;
}

size_t World::find(const LaneState& state, int from) const {
  size_t place = 0;
  while (place < state.inbox.size() && frames_[state.inbox[place]].from != from) ++place;
  return place;
}

// `operand` is where it begins in the store of values.
void World::reduce(LaneState& state, const Step& step, size_t operand) {
  const bool first = !std::exchange(state.valued, true);
  const size_t old = std::exchange(state.values, values_.size());
  const auto size = static_cast<size_t>(step.range.size());
  values_.resize(values_.size() + size);
  Value* const result = values_.data() + state.values;
  const Value* const left = values_.data() + old;
  const Value* const right = values_.data() + operand;
  for (size_t i = 0; i < size; ++i) result[i] = first ? right[i] : joined(left[i], right[i]);
}

void World::reduce_own(size_t rank, size_t lane, const Step& step) {
  if (step.source.size() != step.range.size()) fail(rank, lane, "source and range differ in size");
  if (step.accumulated) return reduce_accumulated(rank, lane, step);
  if (step.source.begin < 0 || step.source.end > job_.num_inputs[rank]) fail(rank, lane, "source outside the input");
  const size_t at = values_.size();
  for (int64_t i = step.source.begin; i < step.source.end; ++i) values_.push_back(element(static_cast<int>(rank), i));
  reduce(ranks_[rank].lanes[lane], step, at);
}

// What an earlier step stored is only a part of the result: its place in the output counts as not written yet.
void World::reduce_accumulated(size_t rank, size_t lane, const Step& step) {
  const size_t at = values_.size();
  for (int64_t i = step.range.begin; i < step.range.end; ++i) {
    Value& value = outcome_.outputs[rank][static_cast<size_t>(i)];
    if (value.stored != 1) fail(rank, lane, "an accumulated value was not stored once before");
    value.stored = 0;
    values_.push_back(value);
  }
  reduce(ranks_[rank].lanes[lane], step, at);
}

// Takes the next frame in the order of operands; returns whether it was there.
bool World::receive(size_t rank, size_t lane, const Step& step) {
  LaneState& state = ranks_[rank].lanes[lane];
  if (schedule_.together && state.num_received == 0) {
    for (const int from : step.receive_from) {
      if (find(state, from) == state.inbox.size()) return false;
    }
  }
  const int from = step.receive_from[state.num_received];
  const size_t place = find(state, from);
  if (place == state.inbox.size()) return false;
  SentFrame& frame = frames_[state.inbox[place]];
  state.inbox.erase(state.inbox.begin() + static_cast<std::ptrdiff_t>(place));
  if (frame.range.size() != step.range.size()) fail(rank, lane, "sender and receiver disagree on the size of a frame");
  if (job_.ranges_agree && frame.range != step.range)
    fail(rank, lane, "sender and receiver disagree on a frame's range");
  if (step.with_own && static_cast<size_t>(step.own_position) == state.num_received) reduce_own(rank, lane, step);
  reduce(state, step, frame.values);
  ++state.num_received;
  frame.consumed = true;
  if (schedule_.capacity != 0) release(channel(static_cast<size_t>(from), rank));
  return true;
}

// All operands are reduced: scales and stores.
void World::settle(size_t rank, size_t lane, const Step& step) {
  LaneState& state = ranks_[rank].lanes[lane];
  if (step.with_own && static_cast<size_t>(step.own_position) >= state.num_received) reduce_own(rank, lane, step);
  if (!state.valued) fail(rank, lane, "a step without operands");
  if (step.store && (step.range.begin < 0 || step.range.end > job_.num_outputs[rank])) {
    fail(rank, lane, "range outside the output");
  }
  for (int64_t i = 0; i < step.range.size(); ++i) {
    Value& value = values_[state.values + static_cast<size_t>(i)];
    if (step.finish) ++value.finished;
    if (!step.store) continue;
    Value& output = outcome_.outputs[rank][static_cast<size_t>(step.range.begin + i)];
    const uint32_t stored = output.stored + 1;
    output = value;
    output.stored = stored;
  }
}

bool World::send(size_t rank, size_t lane, const Step& step) {
  LaneState& state = ranks_[rank].lanes[lane];
  const auto to = static_cast<size_t>(step.send_to[state.num_sent]);
  if (schedule_.capacity != 0 && channel(rank, to).frames.size() >= schedule_.capacity) {
    channel(rank, to).waiting.emplace_back(rank, lane);
    return false;
  }
  if (step.range.size() <= 0 || step.range.size() > job_.chunk) fail(rank, lane, "a frame is empty or too large");
  const std::vector<Lane>& lanes = job_.plans[to].lanes;
  const uint32_t number = job_.plans[rank].lanes[lane].number;
  const auto receiver = std::lower_bound(lanes.begin(), lanes.end(), number,
                                         [](const Lane& a, uint32_t wanted) { return a.number < wanted; });
  if (receiver == lanes.end() || receiver->number != number) fail(rank, lane, "the receiver has no such lane");
  const auto index = static_cast<size_t>(receiver - lanes.begin());
  frames_.push_back({.from = static_cast<int>(rank), .range = step.range, .values = state.values});
  if (schedule_.capacity != 0) channel(rank, to).frames.push_back(frames_.size() - 1);
  ++state.num_sent;
  LaneState& target = ranks_[to].lanes[index];
  target.inbox.push_back(frames_.size() - 1);
  if (target.open) make_ready(to, index);
  return true;
}

// Gives room back up to the oldest frame that is still in use.
void World::release(Channel& link) {
  const auto used = std::find_if(link.frames.begin(), link.frames.end(),
                                 [this](size_t frame) { return !frames_[frame].consumed && !frames_[frame].aside; });
  if (used == link.frames.begin()) return;
  link.frames.erase(link.frames.begin(), used);
  for (const auto& [rank, lane] : std::exchange(link.waiting, {})) make_ready(rank, lane);
}

World::Move World::advance(size_t rank, size_t lane) {
  LaneState& state = ranks_[rank].lanes[lane];
  const std::vector<Step>& steps = job_.plans[rank].lanes[lane].steps;
  if (state.step == steps.size()) return Move::kBlocked;  // woken once more after its end
  const Step& step = steps[state.step];
  if (state.num_received < step.receive_from.size()) {
    return receive(rank, lane, step) ? Move::kMoved : Move::kBlocked;
  }
  if (!std::exchange(state.settled, true)) settle(rank, lane, step);
  if (state.num_sent < step.send_to.size()) return send(rank, lane, step) ? Move::kMoved : Move::kBlocked;
  ++state.step;
  state.num_received = state.num_sent = 0;
  state.valued = state.settled = false;
  return state.step < steps.size() ? Move::kMoved : Move::kFinished;
}

// Takes the oldest frame out of a channel that somebody waits for; returns whether there was one.
bool World::set_aside() {
  const auto stopped =
      std::find_if(channels_.begin(), channels_.end(), [](const Channel& link) { return !link.waiting.empty(); });
  if (stopped == channels_.end()) return false;
  ++outcome_.num_set_aside;
  frames_[stopped->frames.front()].aside = true;
  release(*stopped);
  return true;
}

void World::check_ends() const {
  for (size_t rank = 0; rank < size_; ++rank) {
    const RankState& state = ranks_[rank];
    for (size_t lane = 0; lane < state.lanes.size(); ++lane) {
      if (state.lanes[lane].step < job_.plans[rank].lanes[lane].steps.size()) fail(rank, lane, "stuck for ever");
      if (!state.lanes[lane].inbox.empty()) fail(rank, lane, "a frame was never received");
    }
  }
}

Outcome World::run() {
  for (size_t rank = 0; rank < size_; ++rank) {
    outcome_.outputs.emplace_back(static_cast<size_t>(job_.num_outputs[rank]));
    ranks_[rank].lanes.resize(job_.plans[rank].lanes.size());
    open_lanes(rank);
  }
  try {
    size_t rank = 0;
    do {
      while (pick_rank(rank)) {
        for (uint64_t burst = 1 + draw(64); burst > 0 && !ranks_[rank].ready.empty(); --burst) {
          const size_t lane = take_ready(rank);
          const Move move = advance(rank, lane);
          if (move == Move::kMoved) make_ready(rank, lane);
          if (move != Move::kFinished) continue;
          ++ranks_[rank].num_finished;
          open_lanes(rank);
        }
      }
    } while (set_aside());
    check_ends();
  } catch (const std::runtime_error& error) {
    outcome_.problem = error.what();
  }
  outcome_.num_frames = static_cast<int64_t>(frames_.size());
  return std::move(outcome_);
}

}  // namespace

Value element(int rank, int64_t index) {
  const uint64_t random = mixed(static_cast<uint64_t>(rank) << 32 ^ static_cast<uint64_t>(index));
  return {.sum = random, .text = mixed(random), .scale = random | 1, .finished = 0, .stored = 0};
}

Value joined(const Value& a, const Value& b) {
  return {.sum = a.sum + b.sum,
          .text = a.text * b.scale + b.text,
          .scale = a.scale * b.scale,
          .finished = a.finished + b.finished,
          .stored = 0};
}

Outcome run(const Job& job, const Schedule& schedule, uint64_t seed) { return World(job, schedule, seed).run(); }

}  // namespace hvd::testing
