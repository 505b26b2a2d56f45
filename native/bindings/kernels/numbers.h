// Numbers of a job that a graph or a compiled program asks for when it runs.
#pragma once

#include <cstdint>
#include <variant>

#include "bindings/kernels/failure.h"

namespace hvd::kernels {

enum class Question : uint8_t { kRank, kLocalRank, kLocalSize, kSize, kIncluded };

// Whether the answer depends on a process set.
[[nodiscard]] constexpr bool is_about_a_set(Question question) {
  return question == Question::kRank || question == Question::kSize || question == Question::kIncluded;
}

// Answers of kIncluded that are no yes (1) or no (0); it never fails.
inline constexpr int kNotInitialized = -1;
inline constexpr int kUnknownSet = -3;

// `number` is that of the job.
[[nodiscard]] std::variant<int, Failure> answer(Question question, int64_t number, int64_t process_set);

}  // namespace hvd::kernels
