#include <array>
#include <bit>

#include "testing/check.h"
#include "tests/test_reduce_reference.h"

namespace hvd {
namespace {

using testing::EachIsa;
using testing::Random;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr DType kFloatDTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& sources, double factor) {
  std::vector<T> result(sources[0].size());
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  reduce(dtype, op, reinterpret_cast<std::byte*>(result.data()), pointers, result.size(), factor);
  return result;
}

template <class T>
void check_equal(const std::vector<T>& actual, const std::vector<T>& expected, const char* what, ReduceOp op) {
  const size_t count = expected.size();
  const size_t at =
      testing::first_difference(reinterpret_cast<const std::byte*>(actual.data()), expected.data(), count);
  if (at == count) return;
  std::ostringstream text;
  text << what << " of " << kernel_isa() << ", " << name_of(op) << ": element " << at << " is "
       << testing::widen(actual[at]) << ", expected " << testing::widen(expected[at]);
  testing::report(__FILE__, __LINE__, text.str());
}

template <class H>
std::vector<H> every_half() {
  std::vector<H> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  return all;
}

template <class T>
T make(double value) {
  if constexpr (testing::kIsHalf<T>) {
    return testing::encode<T>(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Half the distance to the next value: a sum with it lies exactly between two values.
template <class H>
H half_step(H value) {
  const float wide = testing::decode(value);
  if (!std::isfinite(wide) || wide == 0) return {0};
  return testing::encode<H>(std::ldexp(1.0f, std::ilogb(wide) - H::kFractionBits - 1));
}

template <class H>
void check_every_half(DType dtype, const EachIsa& isas) {
  const std::vector<H> all = every_half<H>();
  const std::vector<H> minus_zero(all.size(), H{0x8000});
  const auto check = [&](const std::vector<std::vector<H>>& sources, double factor, const std::vector<H>& expected) {
    for (const std::string_view isa : isas.names()) {
      select_kernel_isa(isa);
      check_equal(reduced(dtype, ReduceOp::kSum, sources, factor), expected, "every half", ReduceOp::kSum);
    }
  };
  check({all, minus_zero}, 1.0, all);

  std::vector<H> steps;
  for (const H value : all) steps.push_back(half_step(value));
  const std::vector<H> tiny(all.size(), H{1});
  const std::vector<H> minus_tiny(all.size(), H{0x8001});
  for (const auto& third : {minus_zero, tiny, minus_tiny}) {
    const std::vector<std::vector<H>> sources{all, steps, third};
    for (const double factor : {1.0, 0.5, -1 / 3., 0x1p-9, 300.0}) {
      check(sources, factor, testing::expected_reduce(ReduceOp::kSum, sources, 3, factor));
    }
  }
}

template <class T>
std::vector<T> special_values() {
  std::vector<T> values;
  const double inf = std::numeric_limits<double>::infinity();
  for (const double value : {-0.0, 1.0, -2.0, inf, -inf, std::numeric_limits<double>::quiet_NaN(), 0x1p-24, 3.0, 0.0}) {
    values.push_back(make<T>(value));
  }
  return values;
}

template <class T>
T any_bits(Random& random) {
  if constexpr (testing::kIsHalf<T>) {
    return {static_cast<uint16_t>(random.bits() >> 20)};
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<uint32_t>(random.bits() >> 20));
  } else {
    return std::bit_cast<T>(random.bits());
  }
}

}  // namespace

TEST("reduce: every float16 and bfloat16 is read exactly and rounded to nearest even") {
  const EachIsa isas;
  check_every_half<testing::Float16>(DType::kFloat16, isas);
  check_every_half<testing::BFloat16>(DType::kBFloat16, isas);
}

TEST("scale: by 1 is a copy, bit by bit, also of NaN") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto all = every_half<testing::Float16>();
      auto copy = std::vector<testing::Float16>(all.size());
      scale(dtype, reinterpret_cast<std::byte*>(copy.data()), reinterpret_cast<const std::byte*>(all.data()),
            all.size(), 1.0);
      CHECK(std::memcmp(copy.data(), all.data(), 2 * all.size()) == 0);
    }
  }
}

TEST("reduce: half types are rounded once, after all sources and the factor") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (size_t num_sources = 3; num_sources <= 9; ++num_sources) {
      // Each step alone would be lost beside 2048, and 4 * 60000 is beyond float16.
      std::vector<std::vector<testing::Float16>> steps(num_sources, {make<testing::Float16>(1)});
      steps[0] = {make<testing::Float16>(2048)};
      const auto sum = reduced(DType::kFloat16, ReduceOp::kSum, steps, 1.0);
      CHECK_EQ(testing::decode(sum[0]), testing::decode(make<testing::Float16>(2047.0 + num_sources)));
      const std::vector<std::vector<testing::Float16>> large(num_sources, {make<testing::Float16>(60000)});
      const auto mean = reduced(DType::kFloat16, ReduceOp::kSum, large, 1.0 / num_sources);
      CHECK_EQ(testing::decode(mean[0]), 60000.0f);
    }
  }
}

TEST("reduce: NaN and infinity, at every place") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : kFloatDTypes) {
      testing::with_type(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (testing::kIsFloating<T>) {
          const std::vector<T> special = special_values<T>();
          std::vector<std::vector<T>> sources(3);
          for (const T a : special) {
            for (const T b : special) {
              for (const T c : special) {
                sources[0].push_back(a);
                sources[1].push_back(b);
                sources[2].push_back(c);
              }
            }
          }
          for (const ReduceOp op : kOps) {
            for (const double factor : {1.0, 0.5, 1 / 3.}) {
              check_equal(reduced(dtype, op, sources, factor), testing::expected_reduce(op, sources, 3, factor),
                          "special values", op);
            }
          }
        }
      });
    }
  }
}

TEST("reduce: of two zeros Min and Max take the later source, in every lane") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : kFloatDTypes) {
      testing::with_type(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (testing::kIsFloating<T>) {
          const std::vector<T> plus(47, make<T>(0.0));
          const std::vector<T> minus(47, make<T>(-0.0));
          for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
            check_equal(reduced<T>(dtype, op, {plus, minus}, 1.0), minus, "zeros", op);
            check_equal(reduced<T>(dtype, op, {minus, plus}, 1.0), plus, "zeros", op);
          }
        }
      });
    }
  }
}

TEST("scale: by NaN gives NaN, whatever its payload") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const uint64_t payload : {uint64_t{0x7ff8000000000000}, ~uint64_t{0}, ~uint64_t{0} >> 1}) {
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
        std::array<testing::Float16, 67> values{};
        auto* memory = reinterpret_cast<std::byte*>(values.data());
        scale(dtype, memory, memory, values.size(), std::bit_cast<double>(payload));
        for (const testing::Float16 value : values) {
          CHECK((value.bits & 0x7fff) > (dtype == DType::kFloat16 ? 0x7c00 : 0x7f80));
        }
      }
    }
  }
}

TEST("average: of equal whole numbers it is exact") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const DType dtype : kFloatDTypes) {
      testing::with_type(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (testing::kIsFloating<T>) {
          std::vector<T> values;
          for (int i = 0; i < 100; ++i) values.push_back(make<T>(i));
          for (int num_sources = 2; num_sources <= 50; ++num_sources) {
            const std::vector<const std::byte*> sources(static_cast<size_t>(num_sources),
                                                        reinterpret_cast<const std::byte*>(values.data()));
            std::vector<T> result(values.size());
            average(dtype, reinterpret_cast<std::byte*>(result.data()), sources, result.size(), 1.0, num_sources);
            check_equal(result, values, "average", ReduceOp::kSum);
          }
        }
      });
    }
  }
}

TEST("reduce: bit-equal in every instruction set, for any bits") {
  const EachIsa isas;
  for (const DType dtype : kFloatDTypes) {
    testing::with_type(dtype, [&](auto element) {
      using T = decltype(element);
      if constexpr (testing::kIsFloating<T>) {
        Random random;
        std::vector<std::vector<T>> sources(6, std::vector<T>(3001));
        for (auto& source : sources) {
          for (T& value : source) value = any_bits<T>(random);
        }
        for (const ReduceOp op : kOps) {
          for (const double factor : {1.0, 0.25, 1 / 7.}) {
            select_kernel_isa("base");
            const std::vector<T> expected = reduced(dtype, op, sources, factor);
            for (const std::string_view isa : isas.names()) {
              select_kernel_isa(isa);
              check_equal(reduced(dtype, op, sources, factor), expected, "any bits", op);
            }
          }
        }
      }
    });
  }
}

}  // namespace hvd
