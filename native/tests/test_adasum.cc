#include <cfloat>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "reduce/adasum.h"
#include "testing/check.h"
#include "tests/test_reduce_reference.h"

namespace hvd {
namespace {

using testing::Random;

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
}

template <class T>
std::vector<T> combined(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  adasum(dtype_of<T>(), reinterpret_cast<std::byte*>(result.data()), reinterpret_cast<const std::byte*>(a.data()),
         reinterpret_cast<const std::byte*>(b.data()), a.size());
  return result;
}

template <class T>
void check_near(const std::vector<T>& result, const std::vector<double>& expected) {
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  const double most = 4 * static_cast<double>(std::numeric_limits<T>::epsilon()) * largest;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(static_cast<double>(result[i]) - expected[i]) <= most) continue;
    CHECK_EQ(result[i], expected[i]);
    return;
  }
}

template <class T>
void check_random(size_t count) {
  Random random;
  std::vector<T> a(count);
  std::vector<T> b(count);
  for (size_t i = 0; i < count; ++i) {
    a[i] = static_cast<T>(random.uniform() * 2 - 1);
    b[i] = static_cast<T>(random.uniform() * 3 - 1);
  }
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  std::vector<double> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = a[i] * (1 - ab / (2 * aa)) + b[i] * (1 - ab / (2 * bb));
  if (std::is_same_v<T, double>) check_near(combined(a, b), expected);
  // float32 products are summed in float64, so their reference has to be, too.
  if (std::is_same_v<T, float>) {
    const std::vector<double> wide_a(a.begin(), a.end());
    const std::vector<double> wide_b(b.begin(), b.end());
    check_near(combined(a, b), combined(wide_a, wide_b));
  }
}

}  // namespace

TEST("adasum: follows its definition for every count") {
  for (const size_t count : {1, 2, 7, 8, 9, 64, 1001, 70'003}) {
    check_random<double>(count);
    check_random<float>(count);
  }
  CHECK(combined<float>({}, {}).empty());
}

TEST("adasum: orthogonal vectors are added, equal ones averaged, opposite ones too") {
  CHECK(combined<float>({3, 0, 0}, {0, 4, 0}) == (std::vector<float>{3, 4, 0}));
  CHECK(combined<float>({3, 5, -7}, {3, 5, -7}) == (std::vector<float>{3, 5, -7}));
  CHECK(combined<double>({1, 2}, {2, 4}) == (std::vector<double>{1.5, 3}));
  CHECK(combined<double>({4, -2}, {-4, 2}) == (std::vector<double>{0, 0}));
  CHECK(combined<float>({0, 0}, {1, 2}) == (std::vector<float>{1, 2}));
  CHECK(combined<float>({1, 2}, {0, 0}) == (std::vector<float>{1, 2}));
  CHECK(combined<float>({0, 0}, {0, 0}) == (std::vector<float>{0, 0}));
}

TEST("adasum: the result may be stored in either operand") {
  const std::vector<float> a{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> b{2, 1, 0, -1, 3, 3, 3, 9, 1};
  const std::vector<float> expected = combined(a, b);
  std::vector<float> first = a;
  std::vector<float> second = b;
  auto* first_bytes = reinterpret_cast<std::byte*>(first.data());
  auto* second_bytes = reinterpret_cast<std::byte*>(second.data());
  adasum(DType::kFloat32, first_bytes, first_bytes, second_bytes, a.size());
  CHECK(first == expected);
  first = a;
  adasum(DType::kFloat32, second_bytes, first_bytes, second_bytes, a.size());
  CHECK(second == expected);
}

// Nine equal elements, so that whole lanes and the rest both take part.
TEST("adasum: equal vectors stay what they are from the smallest normal numbers to the largest") {
  for (const float value : {FLT_MIN, 1e-30f, 1e-3f, 1.8e19f, FLT_MAX}) {
    const std::vector<float> values(9, value);
    CHECK(combined(values, values) == values);
  }
  for (const double value : {1e-76, 1e-3, 1.3e154, 1e200, DBL_MAX}) {
    const std::vector<double> values(9, value);
    CHECK(combined(values, values) == values);
  }
}

TEST("adasum: a norm that is too small to divide by leaves its term as it is") {
  const std::vector<double> tiny(9, DBL_MIN);
  CHECK(combined(tiny, tiny) == std::vector<double>(9, 2 * DBL_MIN));
  CHECK(combined(std::vector<double>(9, 1e-80), std::vector<double>(9, 1e-80)) == std::vector<double>(9, 2e-80));
  // Parallel: the large one loses half of the small one, which is nothing.
  CHECK(combined(tiny, std::vector<double>(9, 1.0)) == std::vector<double>(9, 1.0));
}

TEST("adasum: parallel vectors of very different norms are averaged") {
  check_near(combined(std::vector<float>(9, 1e-18f), std::vector<float>(9, 1e19f)), std::vector<double>(9, 5e18));
  check_near(combined(std::vector<double>(9, 1e-60), std::vector<double>(9, 1e154)), std::vector<double>(9, 5e153));
  check_near(combined(std::vector<double>(9, 1e-60), std::vector<double>(9, 1e300)), std::vector<double>(9, 5e299));
  check_near(combined(std::vector<double>(9, 2e307), std::vector<double>(9, 4.0)), std::vector<double>(9, 1e307));
}

TEST("adasum: infinities and NaNs are not hidden") {
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(std::isnan(combined<float>({NAN, 1}, {1, 1})[1]));
  CHECK(!std::isfinite(combined<float>({INFINITY, 1}, {1, 1})[0]));
  CHECK(!std::isfinite(combined<double>({1, 1}, {inf, 1})[0]));
  CHECK(std::isnan(combined<double>({NAN, 1}, {1, 1})[1]));
}

TEST("adasum: half types are widened and narrowed at any count, and nothing beyond is touched") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    CHECK(adasum_dtype(dtype) == DType::kFloat32);
    testing::with_type(dtype, [&](auto element) {
      using T = decltype(element);
      if constexpr (testing::kIsHalf<T>) {
        for (size_t count = 0; count <= 67; ++count) {
          Random random;
          // Ends where the elements end, for AddressSanitizer.
          const auto halves = std::make_unique<T[]>(count);
          const auto floats = std::make_unique<float[]>(count);
          for (size_t i = 0; i < count; ++i) halves[i] = testing::random_element<T>(random);
          to_adasum(dtype, reinterpret_cast<std::byte*>(floats.get()), reinterpret_cast<std::byte*>(halves.get()),
                    count, 3.0);
          // Rounded to the half type, as a factor leaves it in every other reduction.
          const auto product_of = [](T half) { return testing::encode<T>(testing::decode(half) * 3); };
          size_t wrong = 0;
          for (size_t i = 0; i < count; ++i) wrong += floats[i] != testing::decode(product_of(halves[i]));
          from_adasum(dtype, reinterpret_cast<std::byte*>(halves.get()), reinterpret_cast<std::byte*>(floats.get()),
                      count, 0.25);
          for (size_t i = 0; i < count; ++i) wrong += halves[i].bits != testing::encode<T>(floats[i] * 0.25f).bits;
          CHECK_EQ(wrong, size_t{0});
        }
      }
    });
  }
}

TEST("adasum: float32 and float64 are scaled in place") {
  CHECK(adasum_dtype(DType::kFloat32) == DType::kFloat32);
  CHECK(adasum_dtype(DType::kFloat64) == DType::kFloat64);
  double values[] = {1, 2, 3};
  auto* bytes = reinterpret_cast<std::byte*>(values);
  to_adasum(DType::kFloat64, bytes, bytes, 3, 0.5);
  from_adasum(DType::kFloat64, bytes, bytes, 3, 4.0);
  CHECK(values[0] == 2 && values[1] == 4 && values[2] == 6);
}

TEST("adasum: refuses what is not floating point") {
  const auto refuses = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal && std::string(error.what()).find("Adasum") != std::string::npos;
    }
    return false;
  };
  CHECK(refuses([] { return adasum_dtype(DType::kInt32); }));
  CHECK(refuses([] { to_adasum(DType::kBool, nullptr, nullptr, 0, 1.0); }));
  CHECK(refuses([] { from_adasum(DType::kUInt8, nullptr, nullptr, 0, 1.0); }));
  CHECK(refuses([] { adasum(DType::kFloat16, nullptr, nullptr, nullptr, 0); }));
}

}  // namespace hvd
