#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <sstream>

#include "base/error.h"
#include "testing/check.h"
#include "tests/test_reduce_reference.h"

namespace hvd {
namespace {

using testing::Bool;
using testing::EachIsa;
using testing::Random;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr size_t kCounts[] = {0, 1, 7, 64, 1000, 4099};
constexpr size_t kMaxCount = 4099;
constexpr size_t kMaxSources = 6;
constexpr double kFactors[] = {1.0, 0.5, 1 / 3.};
constexpr size_t kGuardBytes = 64;

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (size_t i = 0; i < kNumDTypes; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

// Memory at a chosen distance from a cache line, with room for guards.
class Bytes {
 public:
  explicit Bytes(size_t num_bytes) : memory_(num_bytes + 5 * kGuardBytes) {}
  std::byte* at(size_t misalignment) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (-address % kGuardBytes) + kGuardBytes + misalignment;
  }

 private:
  std::vector<std::byte> memory_;
};

// Where dst and the sources lie. `alias` is the source that is dst, or -1.
struct Layout {
  int alias;
  bool misaligned;
};

std::vector<Layout> layouts_for(size_t num_sources) {
  std::vector<Layout> layouts{{-1, false}, {-1, true}, {0, true}};
  if (num_sources > 1) layouts.push_back({static_cast<int>(num_sources) - 1, false});
  if (num_sources > 2) layouts.push_back({static_cast<int>(num_sources) / 2, true});
  return layouts;
}

template <class T>
class Matrix {
 public:
  explicit Matrix(DType dtype) : dtype_(dtype), dst_(kMaxCount * sizeof(T)) {
    Random random;
    for (auto& source : sources_) {
      source.resize(kMaxCount);
      for (T& element : source) element = testing::random_element<T>(random);
    }
    for (size_t j = 0; j < kMaxSources; ++j) buffers_.emplace_back(kMaxCount * sizeof(T));
  }

  void run(const EachIsa& isas) {
    for (const ReduceOp op : kOps) {
      for (size_t num_sources = 1; num_sources <= kMaxSources; ++num_sources) {
        for (const double factor : kFactors) {
          const std::vector<T> expected = testing::expected_reduce(op, sources_, num_sources, factor);
          for (const std::string_view isa : isas.names()) {
            select_kernel_isa(isa);
            for (const Layout layout : layouts_for(num_sources)) {
              for (const size_t count : kCounts) check(op, num_sources, count, factor, layout, expected);
            }
          }
        }
      }
    }
  }

 private:
  void check(ReduceOp op, size_t num_sources, size_t count, double factor, Layout layout,
             const std::vector<T>& expected) {
    const size_t num_bytes = count * sizeof(T);
    std::vector<const std::byte*> pointers;
    std::byte* dst = dst_.at(layout.misaligned ? 3 : 0);
    for (size_t j = 0; j < num_sources; ++j) {
      std::byte* source = buffers_[j].at(layout.misaligned ? 1 + 2 * j : 0);
      std::memcpy(source, sources_[j].data(), num_bytes);
      pointers.push_back(source);
      if (static_cast<int>(j) == layout.alias) dst = source;
    }
    std::memset(dst - kGuardBytes, 0xa5, kGuardBytes);
    std::memset(dst + num_bytes, 0xa5, kGuardBytes);
    reduce(dtype_, op, dst, pointers, count, factor);
    const size_t difference = testing::first_difference(dst, expected.data(), count);
    if (difference == count && guards_intact(dst, num_bytes)) return;
    std::ostringstream text;
    text << kernel_isa() << " " << name_of(op) << " of " << num_sources << " " << name_of(dtype_) << " x " << count
         << ", factor " << factor << ", dst is source " << layout.alias << ", misaligned " << layout.misaligned
         << (difference == count ? ": wrote outside" : ": first difference at ") << difference;
    testing::report(__FILE__, __LINE__, text.str());
  }

  static bool guards_intact(const std::byte* dst, size_t num_bytes) {
    const auto intact = [](std::byte value) { return value == std::byte{0xa5}; };
    return std::all_of(dst - kGuardBytes, dst, intact) &&
           std::all_of(dst + num_bytes, dst + num_bytes + kGuardBytes, intact);
  }

  DType dtype_;
  std::vector<std::vector<T>> sources_{kMaxSources};
  std::vector<Bytes> buffers_;
  Bytes dst_;
};

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& sources, double factor = 1.0) {
  std::vector<T> result(sources[0].size());
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  reduce(dtype, op, reinterpret_cast<std::byte*>(result.data()), pointers, result.size(), factor);
  return result;
}

template <class T>
T scaled(DType dtype, T value, double factor) {
  T result;
  scale(dtype, reinterpret_cast<std::byte*>(&result), reinterpret_cast<const std::byte*>(&value), 1, factor);
  return result;
}

template <class T>
std::vector<T> averaged(DType dtype, const std::vector<std::vector<T>>& sources, int divisor, double factor = 1.0) {
  std::vector<T> result(sources[0].size());
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  average(dtype, reinterpret_cast<std::byte*>(result.data()), pointers, result.size(), factor, divisor);
  return result;
}

TEST("integer_average_factor: no average is lost to truncation, and powers of two stay exact") {
  for (int divisor = 1; divisor <= 5000; ++divisor) {
    for (const double value : {1.0, -1.0, 7.0, 1e6}) {
      const double factor = integer_average_factor(1.0, divisor);
      CHECK_EQ(std::trunc(value * divisor * factor), value);
      // One less, and the quotient is one less.
      CHECK_EQ(std::trunc((value * divisor - std::copysign(1.0, value)) * factor), value - std::copysign(1.0, value));
    }
  }
  for (int divisor = 1; divisor <= 1 << 19; divisor += 1 + divisor / 100) {
    const double factor = integer_average_factor(1.0, divisor);
    for (const double value : {4294967295.0, 4294967294.0, -2147483648.0}) {
      const double sum = value * divisor;
      CHECK_EQ(std::trunc(sum * factor), value);
      CHECK_EQ(std::trunc((sum + divisor - 1) * factor), divisor == 1 || value > 0 ? value : value + 1);
    }
  }
  CHECK_EQ(integer_average_factor(1.0, 8), 0.125);
  CHECK_EQ(integer_average_factor(-3.0, 1), -3.0);
}

}  // namespace

TEST("reduce: every dtype, op, number of sources, count, layout, factor and instruction set") {
  const EachIsa isas;
  for (const DType dtype : all_dtypes()) {
    testing::with_type(dtype, [&](auto element) { Matrix<decltype(element)>(dtype).run(isas); });
  }
}

TEST("reduce: many sources, dst is any of them") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (size_t num_sources = 2; num_sources <= 17; ++num_sources) {
      for (size_t alias = 0; alias < num_sources; ++alias) {
        std::vector<std::vector<int32_t>> sources(num_sources, std::vector<int32_t>(2500));
        for (size_t j = 0; j < num_sources; ++j) {
          for (size_t i = 0; i < 2500; ++i) sources[j][i] = static_cast<int32_t>(i * (j + 1));
        }
        std::vector<const std::byte*> pointers;
        for (auto& source : sources) pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
        reduce(DType::kInt32, ReduceOp::kSum, reinterpret_cast<std::byte*>(sources[alias].data()), pointers, 2500, 1);
        const size_t weight = num_sources * (num_sources + 1) / 2;
        size_t wrong = 0;
        for (size_t i = 0; i < 2500; ++i) wrong += sources[alias][i] != static_cast<int32_t>(i * weight);
        CHECK_EQ(wrong, size_t{0});
      }
    }
  }
}

// For AddressSanitizer: the memory ends exactly where the elements end.
TEST("reduce and scale: read and write nothing beyond the last element") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : all_dtypes()) {
      for (size_t count = 1; count <= 67; count += 3) {
        const size_t num_bytes = count * size_of(dtype);
        const auto a = std::make_unique<std::byte[]>(num_bytes);
        const auto b = std::make_unique<std::byte[]>(num_bytes);
        const std::byte* const sources[] = {a.get(), b.get(), a.get(), a.get(), b.get()};
        const auto dst = std::make_unique<std::byte[]>(num_bytes);
        for (const size_t num_sources : {2, 5}) {
          reduce(dtype, ReduceOp::kSum, dst.get(), std::span(sources, num_sources), count, 0.25);
        }
        scale(dtype, dst.get(), a.get(), count, 0.3);
        CHECK(std::all_of(dst.get(), dst.get() + num_bytes, [](std::byte value) { return value == std::byte{0}; }));
      }
    }
  }
}

TEST("scale: in place, by every factor") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : all_dtypes()) {
      testing::with_type(dtype, [&](auto element) {
        using T = decltype(element);
        for (const double factor : {1.0, 0.5, 1 / 3., -2.5, 0.0}) {
          Random random;
          std::vector<std::vector<T>> values(1, std::vector<T>(333));
          for (T& value : values[0]) value = testing::random_element<T>(random);
          const std::vector<T> expected = testing::expected_reduce(ReduceOp::kSum, values, 1, factor);
          auto* memory = reinterpret_cast<std::byte*>(values[0].data());
          scale(dtype, memory, memory, 333, factor);
          CHECK_EQ(testing::first_difference(memory, expected.data(), 333), size_t{333});
        }
      });
    }
  }
}

TEST("reduce: integers wrap around") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    CHECK(reduced<int8_t>(DType::kInt8, ReduceOp::kSum, {{127, -128}, {1, -1}}) == (std::vector<int8_t>{-128, 127}));
    CHECK(reduced<uint16_t>(DType::kUInt16, ReduceOp::kProduct, {{65535}, {65535}}) == (std::vector<uint16_t>{1}));
    CHECK(reduced<int32_t>(DType::kInt32, ReduceOp::kSum, {{INT32_MAX}, {INT32_MAX}}) == (std::vector<int32_t>{-2}));
    CHECK(reduced<int64_t>(DType::kInt64, ReduceOp::kProduct, {{INT64_MIN}, {-1}}) ==
          (std::vector<int64_t>{INT64_MIN}));
    // A sum that is scaled wraps in its own type first.
    CHECK(reduced<int8_t>(DType::kInt8, ReduceOp::kSum, {{100}, {100}}, 0.5) == (std::vector<int8_t>{-28}));
  }
}

TEST("average: every dtype, number of sources and instruction set") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : all_dtypes()) {
      testing::with_type(dtype, [&](auto element) {
        using T = decltype(element);
        for (size_t num_sources = 1; num_sources <= 11; ++num_sources) {
          Random random;
          std::vector<std::vector<T>> sources(num_sources, std::vector<T>(1003));
          for (auto& source : sources) {
            for (T& value : source) value = testing::random_element<T>(random);
          }
          // More than there are sources: those that have joined count, too.
          for (const int divisor : {static_cast<int>(num_sources), static_cast<int>(num_sources) + 1, 64}) {
            const auto expected = testing::expected_average(sources, num_sources, 1.0, divisor);
            const auto actual = averaged(dtype, sources, divisor);
            const auto* memory = reinterpret_cast<const std::byte*>(actual.data());
            CHECK_EQ(testing::first_difference(memory, expected.data(), 1003), size_t{1003});
          }
        }
      });
    }
  }
}

TEST("average: in place, and times a factor") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
      testing::with_type(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (testing::kIsFloating<T>) {
          Random random;
          std::vector<std::vector<T>> sources(3, std::vector<T>(333));
          for (auto& source : sources) {
            for (T& value : source) value = testing::random_element<T>(random);
          }
          for (const int divisor : {2, 3}) {
            const auto expected = testing::expected_average(sources, 3, 0.3, divisor);
            auto copies = sources;
            const std::byte* pointers[] = {reinterpret_cast<std::byte*>(copies[0].data()),
                                           reinterpret_cast<std::byte*>(copies[1].data()),
                                           reinterpret_cast<std::byte*>(copies[2].data())};
            auto* dst = reinterpret_cast<std::byte*>(copies[1].data());
            average(dtype, dst, pointers, 333, 0.3, divisor);
            CHECK_EQ(testing::first_difference(dst, expected.data(), 333), size_t{333});
          }
        }
      });
    }
  }
}

TEST("average: integers at the ends of their range, where a sum wraps and float64 is too short") {
  const EachIsa isas;
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    CHECK(averaged<int8_t>(DType::kInt8, {{100, -100}, {100, -100}, {100, -101}}, 3) ==
          (std::vector<int8_t>{100, -100}));
    CHECK(averaged<uint8_t>(DType::kUInt8, {{255, 254}, {255, 255}}, 2) == (std::vector<uint8_t>{255, 254}));
    CHECK(averaged<int32_t>(DType::kInt32, {{INT32_MIN, INT32_MAX}, {INT32_MIN, INT32_MAX}}, 2) ==
          (std::vector<int32_t>{INT32_MIN, INT32_MAX}));
    CHECK(averaged<int64_t>(DType::kInt64, {{INT64_MIN, kLarge, -3}, {INT64_MIN, kLarge, 0}, {INT64_MIN, kLarge, 1}},
                            3) == (std::vector<int64_t>{INT64_MIN, kLarge, 0}));
    CHECK(averaged<int64_t>(DType::kInt64, {{INT64_MAX}, {INT64_MAX - 1}, {INT64_MAX}}, 3) ==
          (std::vector<int64_t>{INT64_MAX - 1}));
    CHECK(averaged<uint64_t>(DType::kUInt64, {{UINT64_MAX}, {UINT64_MAX}, {UINT64_MAX}}, 3) ==
          (std::vector<uint64_t>{UINT64_MAX}));
    CHECK(averaged<uint64_t>(DType::kUInt64, {{UINT64_MAX}, {5}}, 2) ==
          (std::vector<uint64_t>{(uint64_t{1} << 63) + 2}));
  }
}

TEST("average: with a factor, integers are multiplied in float64 and saturate") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    CHECK(averaged<int32_t>(DType::kInt32, {{7, -7}, {8, -8}}, 2, 3.0) == (std::vector<int32_t>{22, -22}));
    CHECK(averaged<int8_t>(DType::kInt8, {{100}, {100}}, 2, 2.0) == (std::vector<int8_t>{127}));
    CHECK(averaged<int64_t>(DType::kInt64, {{7}, {8}}, 2, 3.0) == (std::vector<int64_t>{22}));
    CHECK(averaged<int64_t>(DType::kInt64, {{INT64_MAX}, {INT64_MAX}}, 2, 2.0) == (std::vector<int64_t>{INT64_MAX}));
    CHECK(averaged<uint64_t>(DType::kUInt64, {{1}, {2}}, 2, -1.0) == (std::vector<uint64_t>{0}));
  }
}

TEST("scale: a factor is rounded to float32 first, as frameworks do") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    // In float64 the product would round to the other neighbor.
    size_t differ = 0;
    for (int i = 1; i <= 1000; ++i) {
      const float value = 1.0f + static_cast<float>(i) * 0x1p-20f;
      CHECK_EQ(scaled<float>(DType::kFloat32, value, 0.1), value * 0.1f);
      differ += value * 0.1f != static_cast<float>(double{value} * 0.1);
    }
    CHECK(differ > 100);
  }
}

template <class T>
void check_many_scaled(DType dtype) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
  std::vector<T> values;
  for (int i = 0; i < 13; ++i) {
    for (const T value : {T{0}, T{1}, static_cast<T>(-1), T{100}, kMin, kMax}) values.push_back(value);
  }
  for (const double factor : {inf, -inf, nan, 0.0, 1e300, -1e300, 2.0, -1.0, 0.3}) {
    std::vector<T> results(values.size());
    scale(dtype, reinterpret_cast<std::byte*>(results.data()), reinterpret_cast<const std::byte*>(values.data()),
          values.size(), factor);
    for (size_t i = 0; i < values.size(); ++i) CHECK(results[i] == scaled<T>(dtype, values[i], factor));
  }
}

TEST("scale: many integers become what each one becomes") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : all_dtypes()) {
      testing::with_type(dtype, [dtype]<class T>(T) {
        if constexpr (std::is_integral_v<T>) check_many_scaled<T>(dtype);
      });
    }
  }
}

TEST("scale: integers are truncated toward zero and saturate") {
  const EachIsa isas;
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    CHECK_EQ(scaled<int32_t>(DType::kInt32, -7, 0.5), -3);
    CHECK_EQ(scaled<int32_t>(DType::kInt32, 7, 0.5), 3);
    CHECK_EQ(scaled<uint8_t>(DType::kUInt8, 200, 2) + 0, 255);
    CHECK_EQ(scaled<uint8_t>(DType::kUInt8, 200, -1) + 0, 0);
    CHECK_EQ(scaled<int8_t>(DType::kInt8, 100, -2) + 0, -128);
    CHECK_EQ(scaled<int16_t>(DType::kInt16, -3, inf), INT16_MIN);
    CHECK_EQ(scaled<int32_t>(DType::kInt32, INT32_MIN, -1), INT32_MAX);  // one past the end
    CHECK_EQ(scaled<int64_t>(DType::kInt64, INT64_MIN, -1), INT64_MAX);
    CHECK_EQ(scaled<int64_t>(DType::kInt64, INT64_MAX, 2), INT64_MAX);
    CHECK_EQ(scaled<int64_t>(DType::kInt64, INT64_MIN, 1.5), INT64_MIN);
    CHECK_EQ(scaled<uint64_t>(DType::kUInt64, UINT64_MAX, 1e300), UINT64_MAX);
    CHECK_EQ(scaled<uint64_t>(DType::kUInt64, uint64_t{1} << 63, 0.5), uint64_t{1} << 62);
    CHECK_EQ(scaled<int32_t>(DType::kInt32, 5, std::numeric_limits<double>::quiet_NaN()), 0);
    CHECK_EQ(scaled<uint32_t>(DType::kUInt32, 0, inf), 0u);  // 0 * inf is NaN
    CHECK_EQ(scaled<int64_t>(DType::kInt64, 0, -inf), 0);
    CHECK_EQ(scaled<int64_t>(DType::kInt64, 3, -inf), INT64_MIN);
    CHECK_EQ(scaled<uint64_t>(DType::kUInt64, 1, inf), UINT64_MAX);
    CHECK_EQ(scaled<uint64_t>(DType::kUInt64, 1, std::numeric_limits<double>::quiet_NaN()), 0u);
  }
}

TEST("reduce: bool gives 0 or 1 and has no factor") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    const std::vector<std::vector<uint8_t>> sources{{0, 0, 1, 2}, {0, 3, 0, 4}};
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      CHECK(reduced(DType::kBool, op, sources, 0.5) == (std::vector<uint8_t>{0, 1, 1, 1}));
    }
    for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin}) {
      CHECK(reduced(DType::kBool, op, sources, 0.5) == (std::vector<uint8_t>{0, 0, 0, 1}));
    }
    CHECK_EQ(scaled<uint8_t>(DType::kBool, 1, 0.0) + 0, 1);
  }
}

TEST("kernel_isa: follows select_kernel_isa, which refuses what it does not know") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    CHECK(select_kernel_isa(isa));
    CHECK_EQ(kernel_isa(), isa);
  }
  CHECK(!select_kernel_isa("sse9"));
  CHECK_EQ(kernel_isa(), "base");
}

TEST("reduce: refuses Average, Adasum and no source") {
  float value = 1;
  auto* dst = reinterpret_cast<std::byte*>(&value);
  const std::byte* const sources[] = {dst};
  const auto refuses = [&](ReduceOp op, size_t num_sources) {
    try {
      reduce(DType::kFloat32, op, dst, std::span(sources, num_sources), 1, 1.0);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal;
    }
    return false;
  };
  CHECK(refuses(ReduceOp::kAverage, 1));
  CHECK(refuses(ReduceOp::kAdasum, 1));
  CHECK(refuses(ReduceOp::kSum, 0));
  reduce(DType::kFloat32, ReduceOp::kSum, nullptr, std::span(sources, 1), 0, 0.5);
  scale(DType::kFloat32, nullptr, nullptr, 0, 0.5);
}

}  // namespace hvd
