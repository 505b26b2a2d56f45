// The time of the kernels, one line for each element type and operation, for benchmarks/kernels.py.
//
//   native_kernels SECONDS [ISA]    prints "dtype operation microseconds", each the least of bursts of SECONDS in all
//
// Two sources of 64 Ki elements, which stay in the second-level cache: there a kernel decides, not the memory.
#include "reduce/kernels.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace hvd {
namespace {

constexpr size_t kCount = size_t{1} << 16;
constexpr int kBurst = 8;

using Bytes = std::vector<std::byte>;

// Small whole numbers, none of them a NaN or a subnormal, which some processors compute with more slowly.
Bytes make_source(DType dtype, int first) {
  Bytes bytes(kCount * size_of(dtype));
  const auto fill = [&]<class T>(T (*value)(int)) {
    for (size_t i = 0; i < kCount; ++i) {
      const T each = value(static_cast<int>(i % 7) + first);
      std::memcpy(bytes.data() + i * sizeof(T), &each, sizeof(T));
    }
  };
  if (dtype == DType::kFloat64) {
    fill(+[](int value) { return static_cast<double>(value); });
  } else if (dtype == DType::kFloat32) {
    fill(+[](int value) { return static_cast<float>(value); });
  } else if (dtype == DType::kFloat16) {
    fill(+[](int value) { return static_cast<uint16_t>(0x3c00 + value); });
  } else if (dtype == DType::kBFloat16) {
    fill(+[](int value) { return static_cast<uint16_t>(0x3f80 + value); });
  } else {
    for (size_t i = 0; i < kCount; ++i) bytes[i * size_of(dtype)] = static_cast<std::byte>((i % 7 + first) % 2);
  }
  return bytes;
}

double microseconds(double seconds, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double least = std::numeric_limits<double>::infinity();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto begin = Clock::now();
    for (int i = 0; i < kBurst; ++i) work();
    const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
    least = std::min(least, took.count() / kBurst);
  } while (Clock::now() < end);
  return least;
}

void measure(DType dtype, double seconds) {
  const Bytes first = make_source(dtype, 1);
  const Bytes second = make_source(dtype, 2);
  Bytes result(first.size());
  const std::array<const std::byte*, 2> sources{first.data(), second.data()};
  const auto print = [&](const char* operation, const std::function<void()>& work) {
    std::printf("%s %s %.3f\n", std::string(name_of(dtype)).c_str(), operation, microseconds(seconds, work));
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    print(std::string(name_of(op)).c_str(), [&] { reduce(dtype, op, result.data(), sources, kCount, 1.0); });
  }
  print("Average", [&] { average(dtype, result.data(), sources, kCount, 1.0, 3); });
  print("scale", [&] { scale(dtype, result.data(), sources[0], kCount, 0.5); });
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s SECONDS [ISA]\n", argv[0]);
    return 2;
  }
  if (argc == 3 && !hvd::select_kernel_isa(argv[2])) {
    std::fprintf(stderr, "This processor has no %s.\n", argv[2]);
    return 1;
  }
  const double seconds = std::strtod(argv[1], nullptr);
  for (size_t each = 0; each < hvd::kNumDTypes; ++each) hvd::measure(static_cast<hvd::DType>(each), seconds);
}
