// Runs the plans of all ranks of a world, without threads, over channels that hold few or many frames.
//
// Elements are not numbers but remember what they were made of, so one comparison of the outputs shows that
// each rank's operand was taken exactly once, in which order, and how often the postscale factor was applied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hvd::testing {

struct Value {
  uint64_t sum = 0;    // of the operands' random numbers: the same in any order
  uint64_t text = 0;   // the operands one after the other, as a polynomial hash: shows their order
  uint64_t scale = 1;  // what `text` of something in front has to be multiplied with
  uint32_t finished = 0;
  uint32_t stored = 0;
  bool operator==(const Value&) const = default;
};

// Element `index` of the input of `rank`.
[[nodiscard]] Value element(int rank, int64_t index);
// `a` reduced with `b`, in this order.
[[nodiscard]] Value joined(const Value& a, const Value& b);

// How a rank chooses among the lanes that can move. Which rank moves is always random, in bursts.
enum class Order : uint8_t { kRising, kRandom };

struct Schedule {
  const char* name;
  Order order;
  size_t capacity;  // frames between one sender and one receiver; 0: any number. Room is freed oldest first.
  bool together;    // a step takes its frames only when all of them are there
  size_t window;    // unfinished lanes at a time, by rising number; 0: any number
};

struct Job {
  std::vector<Plan> plans;           // of each rank
  std::vector<int64_t> num_inputs;   // elements in each rank's input
  std::vector<int64_t> num_outputs;  // elements in each rank's output
  int64_t chunk = 1;                 // elements
  bool flows = true;                 // never has to set frames aside under the schedules that allow for it
  bool ranges_agree = true;          // sender and receiver number the elements of a frame alike
};

struct Outcome {
  std::string problem;  // empty if all went well
  int64_t num_frames = 0;
  int64_t num_set_aside = 0;  // frames taken from a full channel because nothing else could move
  std::vector<std::vector<Value>> outputs;
};

[[nodiscard]] Outcome run(const Job& job, const Schedule& schedule, uint64_t seed);

}  // namespace hvd::testing
