// Every plan, carried out by all ranks in many orders, gives what the operation promises.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "testing/check.h"
#include "tests/test_plan_world.h"

namespace hvd::testing {
namespace {

using Counts = std::vector<int64_t>;

// From kind to hostile. With few open lanes, frames of lanes that are not open yet may fill a channel.
constexpr Schedule kSchedules[] = {
    {.name = "unlimited", .order = Order::kRandom, .capacity = 0, .together = false, .window = 0},
    {.name = "rising, 4 frames", .order = Order::kRising, .capacity = 4, .together = true, .window = 0},
    {.name = "random, 4 frames", .order = Order::kRandom, .capacity = 4, .together = false, .window = 0},
    {.name = "random, 1 frame", .order = Order::kRandom, .capacity = 1, .together = false, .window = 0},
    {.name = "one lane, 1 frame", .order = Order::kRising, .capacity = 1, .together = true, .window = 1},
    {.name = "three lanes, 2 frames", .order = Order::kRandom, .capacity = 2, .together = true, .window = 3},
};
constexpr size_t kNumSchedules = std::size(kSchedules);

// Under these schedules no channel ever has to be emptied by force.
bool flows(const Schedule& schedule) {
  return schedule.window == 0 && (schedule.order == Order::kRising || !schedule.together);
}

constexpr int kSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 64};
constexpr int64_t kChunks[] = {1, 3, 64, 1000};
constexpr Algorithm kAlgorithms[] = {Algorithm::kDirect, Algorithm::kRing};
constexpr Algorithm kAllreduceAlgorithms[] = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kExchange};

constexpr int64_t kMostFrames = 2'000;
constexpr int64_t kSmallJob = 20;  // elements in all outputs

using Matrix = std::vector<Counts>;
using Expected = std::function<Value(int rank, int64_t index)>;

uint64_t next_seed = 1;

// The reduction of element `index` of the inputs around the ring from `first` on: each rank puts its own in front.
Value reduced_around(int size, int first, int64_t index) {
  Value value = element(first, index);
  for (int offset = 1; offset < size; ++offset) value = joined(element((first + offset) % size, index), value);
  value.finished = value.stored = 1;
  return value;
}

// The reduction in the order of the ranks.
Value reduced(int size, int64_t index) {
  Value value = element(0, index);
  for (int rank = 1; rank < size; ++rank) value = joined(value, element(rank, index));
  value.finished = value.stored = 1;
  return value;
}

Value reduced_by(Algorithm algorithm, int size, int first, int64_t index) {
  return algorithm == Algorithm::kRing ? reduced_around(size, first, index) : reduced(size, index);
}

Value copied(int rank, int64_t index) {
  Value value = element(rank, index);
  value.stored = 1;
  return value;
}

std::string name_of(const char* operation, Algorithm algorithm) {
  if (algorithm == Algorithm::kExchange) return std::string(operation) + " exchange";
  return std::string(operation) + (algorithm == Algorithm::kDirect ? " direct" : " ring");
}

std::string text_of(const Counts& counts) {
  std::string text;
  for (const int64_t count : counts) text += " " + std::to_string(count);
  return text;
}

// Runs the job under one schedule; `expected(rank, index)` is element `index` of the rank's output.
void check_under(const Schedule& schedule, const std::string& title, const Job& job, const Expected& expected) {
  const uint64_t seed = next_seed++;
  const std::string where = title + ", " + std::to_string(job.plans.size()) + " ranks, " + schedule.name + ", seed " +
                            std::to_string(seed) + ": ";
  const Outcome outcome = run(job, schedule, seed);
  if (!outcome.problem.empty()) {
    report(__FILE__, __LINE__, where + outcome.problem);
    throw Fatal(where);
  }
  for (size_t rank = 0; rank < job.plans.size(); ++rank) {
    for (int64_t index = 0; index < job.num_outputs[rank]; ++index) {
      if (outcome.outputs[rank][static_cast<size_t>(index)] == expected(static_cast<int>(rank), index)) continue;
      report(__FILE__, __LINE__, where + "wrong element " + std::to_string(index) + " on rank " + std::to_string(rank));
      throw Fatal(where);
    }
  }
  if (job.flows && flows(schedule) && outcome.num_set_aside != 0) {
    report(__FILE__, __LINE__, where + std::to_string(outcome.num_set_aside) + " frames had to be set aside");
  }
}

// Small jobs run under every schedule, large ones under one, in turn.
void check_job(const std::string& title, const Job& job, const Expected& expected) {
  const int64_t num_elements = std::accumulate(job.num_outputs.begin(), job.num_outputs.end(), int64_t{0});
  if (num_elements > kSmallJob) return check_under(kSchedules[next_seed % kNumSchedules], title, job, expected);
  for (const Schedule& schedule : kSchedules) check_under(schedule, title, job, expected);
}

Job job_of(int size, int64_t chunk, const std::function<Plan(const PlanContext&)>& plan) {
  Job job{.plans = {}, .num_inputs = {}, .num_outputs = {}, .chunk = chunk};
  for (int rank = 0; rank < size; ++rank) job.plans.push_back(plan({.rank = rank, .size = size, .chunk = chunk}));
  return job;
}

// Counts that sit on the edges of shares and frames.
Counts counts_for(int size) { return {0, 1, 2, size - 1, size, size + 1, 97, 1000, 1009}; }

// Equal, uneven and empty blocks.
std::vector<Counts> blocks_for(int size, int64_t chunk) {
  const int64_t longest = size > 9 ? 4 : std::min<int64_t>(2 * chunk + 1, 70);
  const auto ranks = static_cast<size_t>(size);
  std::vector<Counts> all = {Counts(ranks, 0), Counts(ranks, 1), Counts(ranks, longest), Counts(ranks, 0)};
  all.back().back() = longest;
  Counts uneven;
  for (int64_t rank = 0; rank < size; ++rank) uneven.push_back(rank % 3 == 1 ? 0 : rank * 37 % (longest + 1));
  all.push_back(uneven);
  return all;
}

// Where each block begins, and where the last one ends.
Counts begins_of(const Counts& counts) {
  Counts begins = {0};
  for (const int64_t count : counts) begins.push_back(begins.back() + count);
  return begins;
}

// Which block an element is in, and where there.
std::pair<int, int64_t> place_in(const Counts& begins, int64_t index) {
  const auto block = std::upper_bound(begins.begin(), begins.end(), index) - begins.begin() - 1;
  return {static_cast<int>(block), index - begins[static_cast<size_t>(block)]};
}

// The rank at which the reduction of each element begins.
std::vector<int> first_operands(int size, int64_t chunk, Algorithm algorithm, int64_t count) {
  std::vector<int> first(static_cast<size_t>(count), 0);
  if (algorithm != Algorithm::kRing || count == 0) return first;
  const int64_t stripe = std::min(chunk, (count + size - 1) / size) * size;
  for (int64_t begin = 0; begin < count; begin += stripe) {
    for (int rank = 0; rank < size; ++rank) {
      const Range share = share_of(std::min(stripe, count - begin), rank, size);
      for (int64_t index = share.begin; index < share.end; ++index) first[static_cast<size_t>(begin + index)] = rank;
    }
  }
  return first;
}

void check_allreduce(int size, int64_t chunk, Algorithm algorithm, int64_t count) {
  Job job = job_of(size, chunk, [&](const PlanContext& context) { return plan_allreduce(context, algorithm, count); });
  job.num_inputs = job.num_outputs = Counts(static_cast<size_t>(size), count);
  job.flows = algorithm != Algorithm::kExchange;  // for vectors that fit the channels
  const std::vector<int> first = first_operands(size, chunk, algorithm, count);
  std::vector<Value> expected;
  for (int64_t index = 0; index < count; ++index) {
    expected.push_back(reduced_by(algorithm, size, first[static_cast<size_t>(index)], index));
  }
  const std::string details = ", chunk " + std::to_string(chunk) + ", count " + std::to_string(count);
  check_job(name_of("allreduce", algorithm) + details, job,
            [&](int, int64_t index) { return expected[static_cast<size_t>(index)]; });
}

void check_reducescatter(int size, int64_t chunk, Algorithm algorithm, const Counts& counts) {
  Job job =
      job_of(size, chunk, [&](const PlanContext& context) { return plan_reducescatter(context, algorithm, counts); });
  const Counts begins = begins_of(counts);
  job.num_inputs = Counts(counts.size(), begins.back());
  job.num_outputs = counts;
  check_job(name_of("reducescatter", algorithm) + ", chunk " + std::to_string(chunk) + ", counts" + text_of(counts),
            job, [&](int rank, int64_t index) {
              return reduced_by(algorithm, size, (rank + 1) % size, begins[static_cast<size_t>(rank)] + index);
            });
}

void check_allgather(int size, int64_t chunk, Algorithm algorithm, const Counts& counts) {
  Job job = job_of(size, chunk, [&](const PlanContext& context) { return plan_allgather(context, algorithm, counts); });
  const Counts begins = begins_of(counts);
  job.num_inputs = counts;
  job.num_outputs = Counts(counts.size(), begins.back());
  check_job(name_of("allgather", algorithm) + ", chunk " + std::to_string(chunk) + ", counts" + text_of(counts), job,
            [&](int, int64_t index) {
              const auto [owner, place] = place_in(begins, index);
              return copied(owner, place);
            });
}

void check_broadcast(int size, int64_t chunk, int root, int64_t count) {
  Job job = job_of(size, chunk, [&](const PlanContext& context) { return plan_broadcast(context, root, count); });
  job.num_inputs = job.num_outputs = Counts(static_cast<size_t>(size), count);
  const std::string details = ", chunk " + std::to_string(chunk) + ", root " + std::to_string(root) + ", count ";
  check_job("broadcast" + details + std::to_string(count), job,
            [&](int, int64_t index) { return copied(root, index); });
}

void check_transfer(int64_t chunk, int64_t count) {
  Job job = job_of(2, chunk, [&](const PlanContext& context) { return plan_transfer(context, count); });
  job.num_inputs = {count, 0};
  job.num_outputs = {0, count};
  check_job("transfer, chunk " + std::to_string(chunk) + ", count " + std::to_string(count), job,
            [&](int, int64_t index) { return copied(0, index); });
}

void check_alltoall(int size, int64_t chunk, const Matrix& counts) {
  Job job = job_of(size, chunk, [&](const PlanContext& context) { return plan_alltoall(context, counts); });
  job.ranges_agree = false;
  std::vector<Counts> sent;
  std::vector<Counts> received;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    Counts column;
    for (const Counts& row : counts) column.push_back(row[rank]);
    sent.push_back(begins_of(counts[rank]));
    received.push_back(begins_of(column));
    job.num_inputs.push_back(sent.back().back());
    job.num_outputs.push_back(received.back().back());
  }
  check_job("alltoall, chunk " + std::to_string(chunk), job, [&](int rank, int64_t index) {
    const auto [from, place] = place_in(received[static_cast<size_t>(rank)], index);
    return copied(from, sent[static_cast<size_t>(from)][static_cast<size_t>(rank)] + place);
  });
}

// Calls `check` for each size and chunk. Among many ranks no share is long enough for the longest chunk.
void sweep(const std::function<void(int size, int64_t chunk)>& check) {
  for (const int size : kSizes) {
    for (const int64_t chunk : kChunks) {
      if (size <= 9 || chunk < 1000) check(size, chunk);
    }
  }
}

TEST("plan: allreduce") {
  sweep([](int size, int64_t chunk) {
    for (const int64_t count : counts_for(size)) {
      if (count / chunk * size > kMostFrames) continue;
      for (const Algorithm algorithm : kAllreduceAlgorithms) check_allreduce(size, chunk, algorithm, count);
    }
  });
}

TEST("plan: reducescatter") {
  sweep([](int size, int64_t chunk) {
    for (const Counts& counts : blocks_for(size, chunk)) {
      for (const Algorithm algorithm : kAlgorithms) check_reducescatter(size, chunk, algorithm, counts);
    }
  });
}

TEST("plan: allgather") {
  sweep([](int size, int64_t chunk) {
    for (const Counts& counts : blocks_for(size, chunk)) {
      for (const Algorithm algorithm : kAlgorithms) check_allgather(size, chunk, algorithm, counts);
    }
  });
}

TEST("plan: broadcast from every root") {
  sweep([](int size, int64_t chunk) {
    for (int root = 0; root < size; root += size > 9 ? 4 : 1) {
      for (const int64_t count : {0, 1, 35}) check_broadcast(size, chunk, root, count);
    }
  });
}

TEST("plan: transfer") {
  for (const int64_t chunk : kChunks) {
    for (const int64_t count : {0, 1, 35, 1000}) check_transfer(chunk, count);
  }
}

TEST("plan: a transfer has lanes that no other plan has") {
  const PlanContext context{.rank = 0, .size = 2, .chunk = 1};
  for (const Lane& lane : plan_transfer(context, 3).lanes) CHECK(lane.number >= uint32_t{1} << 31);
  for (const Lane& lane : plan_broadcast(context, 0, 3).lanes) CHECK(lane.number < 3);
}

TEST("plan: alltoall") {
  sweep([](int size, int64_t chunk) {
    for (const int64_t most : {0, 1, 7, 200}) {
      if (most / chunk * size * size > kMostFrames) continue;
      Matrix counts(static_cast<size_t>(size));
      for (size_t from = 0; from < counts.size(); ++from) {
        for (size_t to = 0; to < counts.size(); ++to) {
          counts[from].push_back(static_cast<int64_t>((from * 5 + to * 3) % 7) * most / 6);
        }
      }
      check_alltoall(size, chunk, counts);
    }
  });
}

}  // namespace
}  // namespace hvd::testing
