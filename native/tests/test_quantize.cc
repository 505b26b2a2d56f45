// The kernels of 8 bits against a reference that looks for the nearest code among all of them.
#include <array>
#include <bit>

#include "base/error.h"
#include "reduce/quantize.h"
#include "testing/check.h"
#include "tests/test_reduce_reference.h"

namespace hvd::testing {
namespace {

constexpr Quantization kFormats[] = {Quantization::kInt8, Quantization::kFp8E4M3, Quantization::kFp8E5M2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMost = std::numeric_limits<float>::max();

float most_of(Quantization format) {
  return format == Quantization::kInt8 ? 127.0F : format == Quantization::kFp8E4M3 ? 448.0F : 57344.0F;
}

// What a code is worth, by arithmetic; NaN for codes that no finite value has.
float value_of(Quantization format, int code) {
  if (format == Quantization::kInt8) return code == 128 ? kNan : static_cast<float>(static_cast<int8_t>(code));
  const int fraction_bits = format == Quantization::kFp8E4M3 ? 3 : 2;
  const int bias = format == Quantization::kFp8E4M3 ? 7 : 15;
  const int magnitude = code & 127;
  const int exponent = magnitude >> fraction_bits;
  const int fraction = magnitude & ((1 << fraction_bits) - 1);
  const float size =
      exponent == 0 ? std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits)
                    : std::ldexp(static_cast<float>(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
  if (size > most_of(format)) return kNan;
  return code < 128 ? size : -size;
}

// To the nearest; of two the one whose code is even.
float nearest(Quantization format, float scaled) {
  float best = kNan;
  int best_code = 1;
  for (int code = 0; code < 256; ++code) {
    const float value = value_of(format, code);
    if (std::isnan(value)) continue;
    const double distance = std::abs(double{value} - double{scaled});
    const double known = std::isnan(best) ? HUGE_VAL : std::abs(double{best} - double{scaled});
    if (distance > known || (distance == known && (code & 1) > (best_code & 1))) continue;
    best = value;
    best_code = code;
  }
  return best;
}

std::vector<float> expected(Quantization format, const std::vector<float>& values) {
  std::vector<float> result;
  for (size_t begin = 0; begin < values.size(); begin += kQuantizedBlock) {
    const size_t end = std::min(values.size(), begin + static_cast<size_t>(kQuantizedBlock));
    float magnitude = 0;
    for (size_t i = begin; i < end; ++i) magnitude = std::max(magnitude, std::abs(values[i]));
    const float most = most_of(format);
    for (size_t i = begin; i < end; ++i) {
      const float value = magnitude < 0x1p-90F ? 0.0F : nearest(format, values[i] * (most / magnitude));
      result.push_back(value *
                       std::min(magnitude / most,
                                std::nextafter(kMost / most, format == Quantization::kInt8 ? 0.0F : kMost / most)));
    }
  }
  return result;
}

struct Coded {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

Coded coded(Quantization format, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  Coded made{std::vector<std::byte>(quantized_bytes(count)), std::vector<float>(values.size())};
  quantize(format, made.bytes.data(), values.data(), count);
  dequantize(format, made.values.data(), made.bytes.data(), count);
  return made;
}

// Magnitudes of all sizes that a block may have, and of values in it.
std::vector<float> some_values(Random& random, size_t count) {
  std::vector<float> values;
  int size = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % kQuantizedBlock == 0) size = static_cast<int>(random.bits() % 240) - 120;
    const int smaller = static_cast<int>(random.bits() % 24);
    const double value = (random.uniform() - 0.5) * std::ldexp(1.0, size - smaller);
    values.push_back(random.bits() % 16 == 0 ? 0.0F : static_cast<float>(value));
  }
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST("quantize: each value becomes the nearest one, on every instruction set") {
  const EachIsa isas;
  Random random;
  for (const Quantization format : kFormats) {
    for (const size_t count : {1, 2, 31, 255, 256, 257, 700, 4096}) {
      const std::vector<float> values = some_values(random, count);
      const std::vector<float> wanted = expected(format, values);
      for (const std::string_view isa : isas.names()) {
        select_kernel_isa(isa);
        const std::vector<float> found = coded(format, values).values;
        if (std::equal(found.begin(), found.end(), wanted.begin())) continue;
        size_t at = 0;
        while (found[at] == wanted[at]) ++at;
        std::ostringstream text;
        text << name_of(format) << " on " << isa << ": " << values[at] << " of " << count << " became " << found[at]
             << ", not " << wanted[at];
        report(__FILE__, __LINE__, text.str());
      }
    }
  }
}

TEST("quantize: what was quantized stays as it is, and is added exactly") {
  const EachIsa isas;
  Random random;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const Quantization format : kFormats) {
      const std::vector<float> values = some_values(random, 1000);
      const Coded made = coded(format, values);
      std::vector<float> sums = values;
      add_dequantized(format, sums.data(), made.bytes.data(), 1000);
      for (size_t i = 0; i < sums.size(); ++i) CHECK_EQ(sums[i], values[i] + made.values[i]);
      std::vector<float> left(1000, 5.0F);
      keep_error(left.data(), values.data(), made.values.data(), 1000, false);
      for (size_t i = 0; i < left.size(); ++i) CHECK_EQ(left[i], values[i] - made.values[i]);
      keep_error(left.data(), sums.data(), made.values.data(), 1000, true);
      for (size_t i = 0; i < left.size(); ++i) {
        CHECK_EQ(left[i], sums[i] - made.values[i] + (values[i] - made.values[i]));
      }
    }
  }
}

TEST("quantize: infinities and NaNs stay where they are, and their neighbors what they are") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const Quantization format : kFormats) {
      std::vector<float> values(300);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100) - 50.0F;
      values[3] = kInfinity;
      values[90] = -kInfinity;
      values[255] = kNan;
      const std::vector<float> found = coded(format, values).values;
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isfinite(values[i])) {
          CHECK(std::abs(found[i] - values[i]) <= 50.0F / 8);
        } else {
          CHECK(std::isnan(values[i]) ? std::isnan(found[i]) : found[i] == values[i]);
        }
      }
      std::vector<float> left(300, 0.0F);
      keep_error(left.data(), values.data(), found.data(), 300, false);
      for (const float error : left) CHECK(std::isfinite(error));
    }
  }
}

TEST("quantize: zeros, the smallest and the largest values") {
  const EachIsa isas;
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (const Quantization format : kFormats) {
      for (const float size : {0.0F, 0x1p-149F, 0x1p-126F, 0x1p-91F}) {
        for (const float value : coded(format, std::vector<float>(257, size)).values) CHECK_EQ(value, 0.0F);
      }
      for (const float size : {0x1p-90F, 1.0F, kMost, -kMost}) {
        for (const float value : coded(format, std::vector<float>(257, size)).values) {
          CHECK(std::isfinite(value));
          CHECK(std::abs(value / size - 1.0F) < 1e-6F);
        }
      }
    }
  }
}

TEST("quantize: every dtype of floating point is read and written by its own rules") {
  std::vector<float> values(5);
  const std::vector<double> wide{1.0, 1e300, -1e300, 0.1, -0.0};
  to_float32(DType::kFloat64, values.data(), reinterpret_cast<const std::byte*>(wide.data()), 5, 0.5);
  CHECK(same_bits(values, {0.5F, kInfinity, -kInfinity, static_cast<float>(0.1 * 0.5), -0.0F}));
  std::vector<double> back(5);
  values = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F};
  from_float32(DType::kFloat64, reinterpret_cast<std::byte*>(back.data()), values.data(), 5, 3, 1.0);
  for (size_t i = 0; i < 5; ++i) CHECK_EQ(back[i], static_cast<double>(i + 1) / 3);
  const std::vector<Float16> halves{{0x3c00}, {0x7c00}, {0x0001}};
  to_float32(DType::kFloat16, values.data(), reinterpret_cast<const std::byte*>(halves.data()), 3, 1.0);
  CHECK_EQ(values[0], 1.0F);
  CHECK_EQ(values[1], kInfinity);
  CHECK_EQ(values[2], 0x1p-24F);
  bool refused = false;
  try {
    to_float32(DType::kInt32, values.data(), reinterpret_cast<const std::byte*>(wide.data()), 1, 1.0);
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace hvd::testing
