#include "reduce/adasum.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "reduce/kernels.h"

#define HVD_REDUCE_ISA reduce_adasum
#include "reduce/codecs_impl.h"

namespace hvd {
namespace {

using reduce_adasum::BFloat16;
using reduce_adasum::Float16;
using reduce_adasum::load_raw;
using reduce_adasum::store_raw;

constexpr double kLeastSquaredNorm = 0x1p-511;  // sqrt(DBL_MIN)
constexpr size_t kLanes = 8;                    // sums that grow side by side: a single one waits for each addition

[[noreturn]] void refuse(DType dtype) {
  throw Error(ErrorKind::kInternal,
              "Adasum was called for " + std::string(name_of(dtype)) + "; the caller must only pass floating point.");
}

// Calls body(From, To) with codecs for each whole unit of `count` elements, and once more for what is left, padded:
// memory of the caller ends with its last element.
template <class From, class To, class Convert>
void convert_all(std::byte* dst, const std::byte* src, size_t count, size_t lanes, const Convert& convert) {
  const size_t units = count / lanes;
  HVD_INDEPENDENT
  for (size_t i = 0; i < units; ++i) {
    To::store(dst + i * To::kUnitBytes, convert(From::load(src + i * From::kUnitBytes)));
  }
  const size_t left = count % lanes;
  if (left == 0) return;
  std::byte from[From::kUnitBytes] = {};
  std::byte to[To::kUnitBytes];
  __builtin_memcpy(from, src + units * From::kUnitBytes, left * (From::kUnitBytes / lanes));
  To::store(to, convert(From::load(from)));
  __builtin_memcpy(dst + units * To::kUnitBytes, to, left * (To::kUnitBytes / lanes));
}

// With a factor, the product is rounded to the half type first.
template <class Half>
void widen(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor) {
  const auto same = [](auto value) { return value; };
  if (factor == 1.0) return convert_all<Half, typename Half::Acc>(dst, src, count, Half::kLanes, same);
  constexpr size_t kBlockCount = 1024;
  std::byte block[kBlockCount * sizeof(uint16_t)];
  for (size_t at = 0; at < count; at += kBlockCount) {
    const size_t length = std::min(kBlockCount, count - at);
    scale(dtype, block, src + at * sizeof(uint16_t), length, factor);
    convert_all<Half, typename Half::Acc>(dst + at * sizeof(float), block, length, Half::kLanes, same);
  }
}

template <class Half>
void narrow(std::byte* dst, const std::byte* src, size_t count, double factor) {
  convert_all<typename Half::Acc, Half>(dst, src, count, Half::kLanes,
                                        [factor](auto value) { return Half::times(value, {factor, 1.0}); });
}

template <class Wide>
struct Products {
  Wide ab = 0;
  Wide aa = 0;
  Wide bb = 0;

  void add(Wide x, Wide y) {
    ab += x * y;
    aa += x * x;
    bb += y * y;
  }

  // An infinity, a NaN, or a sum that did not fit.
  [[nodiscard]] bool overflowed() const { return !std::isfinite(ab) || !std::isfinite(aa) || !std::isfinite(bb); }
};

template <class T, class Wide>
Products<Wide> products_of(const std::byte* a, const std::byte* b, size_t count) {
  const auto at = [](const std::byte* values, size_t i) {
    return static_cast<Wide>(load_raw<T>(values + i * sizeof(T)));
  };
  Wide ab[kLanes] = {};
  Wide aa[kLanes] = {};
  Wide bb[kLanes] = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const Wide x = at(a, i + lane);
      const Wide y = at(b, i + lane);
      ab[lane] += x * y;
      aa[lane] += x * x;
      bb[lane] += y * y;
    }
  }
  Products<Wide> sums;
  for (size_t i = whole; i < count; ++i) sums.add(at(a, i), at(b, i));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sums.ab += ab[lane];
    sums.aa += aa[lane];
    sums.bb += bb[lane];
  }
  return sums;
}

template <class Wide>
Wide weight(Wide product, Wide squared_norm) {
  return squared_norm < kLeastSquaredNorm ? Wide{1} : 1 - product / (2 * squared_norm);
}

template <class T, class Wide>
void add_weighted(std::byte* dst, const std::byte* a, const std::byte* b, size_t count, const Products<Wide>& sums) {
  const Wide weight_a = weight(sums.ab, sums.aa);
  const Wide weight_b = weight(sums.ab, sums.bb);
  HVD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const Wide x = static_cast<Wide>(load_raw<T>(a + i * sizeof(T)));
    const Wide y = static_cast<Wide>(load_raw<T>(b + i * sizeof(T)));
    store_raw<T>(dst + i * sizeof(T), static_cast<T>(weight_a * x + weight_b * y));
  }
}

}  // namespace

DType adasum_dtype(DType dtype) {
  if (!is_floating(dtype)) refuse(dtype);
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

void to_adasum(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor) {
  if (dtype == DType::kFloat16) return widen<Float16>(dtype, dst, src, count, factor);
  if (dtype == DType::kBFloat16) return widen<BFloat16>(dtype, dst, src, count, factor);
  scale(adasum_dtype(dtype), dst, src, count, factor);
}

void from_adasum(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor) {
  if (dtype == DType::kFloat16) return narrow<Float16>(dst, src, count, factor);
  if (dtype == DType::kBFloat16) return narrow<BFloat16>(dst, src, count, factor);
  scale(adasum_dtype(dtype), dst, src, count, factor);
}

void adasum(DType dtype, std::byte* dst, const std::byte* a, const std::byte* b, size_t count) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) refuse(dtype);
  // Products of float32 always fit into float64.
  if (dtype == DType::kFloat32) return add_weighted<float>(dst, a, b, count, products_of<float, double>(a, b, count));
  const auto sums = products_of<double, double>(a, b, count);
  if (!sums.overflowed()) return add_weighted<double>(dst, a, b, count, sums);
  add_weighted<double>(dst, a, b, count, products_of<double, long double>(a, b, count));
}

}  // namespace hvd
