// The kernels of one instruction set. Each kernels_<isa>.cc defines HVD_REDUCE_ISA and includes this file with
// its own compiler flags, so everything lives in that namespace and nothing calls an inline function of the
// standard library: of two copies the linker could keep the one that this processor cannot run.
#pragma once

#include "reduce/codecs_impl.h"
#include "reduce/quantize_impl.h"

namespace hvd::HVD_REDUCE_ISA {

inline constexpr size_t kMaxFused = 4;       // sources read in one pass
inline constexpr size_t kBlockBytes = 4096;  // stays in the first-level cache beside the sources
inline constexpr size_t kLineBytes = 64;

struct Job {
  std::byte* dst;
  const std::byte* const* sources;
  size_t num_sources;
  Scaling scaling;
};

inline constexpr Scaling kUnscaled{1.0, 1.0};

// Integers are computed in an unsigned type that is not promoted to int: there, wrapping is defined.
template <class T>
using Wrapping = std::make_unsigned_t<std::conditional_t<(sizeof(T) < sizeof(int)), int, T>>;

struct Sum {
  template <class V>
  HVD_INLINE V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(static_cast<Wrapping<V>>(a) + static_cast<Wrapping<V>>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class V>
  HVD_INLINE V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(static_cast<Wrapping<V>>(a) * static_cast<Wrapping<V>>(b));
    } else {
      return a * b;
    }
  }
};

template <class V>
HVD_INLINE V lesser(V a, V b) {
  return a < b ? a : b;
}

template <class V>
HVD_INLINE V greater(V a, V b) {
  return a > b ? a : b;
}

// With a NaN in `b` the first comparison is false and takes it; the second one is for a NaN in `a`.
struct Min {
  template <class V>
  HVD_INLINE V apply(V a, V b) {
    const V least = lesser(a, b);
    return a != a ? a : least;
  }
};

struct Max {
  template <class V>
  HVD_INLINE V apply(V a, V b) {
    const V greatest = greater(a, b);
    return a != a ? a : greatest;
  }
};

struct Or {
  HVD_INLINE uint8_t apply(uint8_t a, uint8_t b) { return (a | b) != 0; }
};

struct And {
  HVD_INLINE uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) & (b != 0); }
};

template <class Op, class V>
HVD_INLINE V combine(V a, V b) {
  if constexpr (std::is_same_v<V, FloatPair>) {
    return {Op::apply(a.low, b.low), Op::apply(a.high, b.high)};
  } else {
    return Op::apply(a, b);
  }
}

// Each unit is read from all sources before it is written and no unit depends on another one, even where dst is
// one of the sources: the compiler need not check for overlap. Not inlined, so that the callers share one copy.
template <class First, class Rest, class Out, class Op, size_t kSources>
__attribute__((noinline)) void fold(std::byte* dst, const std::byte* const* sources, size_t units, Scaling scaling) {
  const std::byte* s0 = sources[0];
  const std::byte* s1 = kSources > 1 ? sources[1] : nullptr;
  const std::byte* s2 = kSources > 2 ? sources[2] : nullptr;
  const std::byte* s3 = kSources > 3 ? sources[3] : nullptr;
  HVD_INDEPENDENT
  for (size_t i = 0; i < units; ++i) {
    typename Out::Value value = First::load(s0 + i * First::kUnitBytes);
    if constexpr (kSources > 1) value = combine<Op>(value, Rest::load(s1 + i * Rest::kUnitBytes));
    if constexpr (kSources > 2) value = combine<Op>(value, Rest::load(s2 + i * Rest::kUnitBytes));
    if constexpr (kSources > 3) value = combine<Op>(value, Rest::load(s3 + i * Rest::kUnitBytes));
    if constexpr (Out::kScales) value = Out::times(value, scaling);
    Out::store(dst + i * Out::kUnitBytes, value);
  }
}

template <class First, class Rest, class Out, class Op>
void fold_few(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t units, Scaling scaling) {
  switch (num_sources) {
    case 2:
      return fold<First, Rest, Out, Op, 2>(dst, sources, units, scaling);
    case 3:
      return fold<First, Rest, Out, Op, 3>(dst, sources, units, scaling);
    default:
      return fold<First, Rest, Out, Op, 4>(dst, sources, units, scaling);
  }
}

// More than kMaxFused sources, at most a block of units. The sum so far waits in a buffer of its own: dst may be
// a source that is still to be read.
template <class C, class Out, class Op>
void fold_block(const Job& job, size_t offset, size_t units) {
  using Acc = typename C::Acc;
  alignas(kLineBytes) std::byte block[kBlockBytes];
  const std::byte* group[kMaxFused];
  for (size_t j = 0; j < kMaxFused; ++j) group[j] = job.sources[j] + offset;
  fold<C, C, Acc, Op, kMaxFused>(block, group, units, kUnscaled);
  group[0] = block;
  size_t next = kMaxFused;
  for (; job.num_sources - next >= kMaxFused; next += kMaxFused - 1) {
    for (size_t j = 1; j < kMaxFused; ++j) group[j] = job.sources[next + j - 1] + offset;
    fold<Acc, C, Acc, Op, kMaxFused>(block, group, units, kUnscaled);
  }
  const size_t left = job.num_sources - next;
  for (size_t j = 1; j <= left; ++j) group[j] = job.sources[next + j - 1] + offset;
  fold_few<Acc, C, Out, Op>(job.dst + offset, group, left + 1, units, job.scaling);
}

// `units` from `offset` (in bytes) on, of two or more sources.
template <class C, class Out, class Op>
void fold_range(const Job& job, size_t offset, size_t units) {
  if (job.num_sources <= kMaxFused) {
    const std::byte* group[kMaxFused];
    for (size_t j = 0; j < job.num_sources; ++j) group[j] = job.sources[j] + offset;
    return fold_few<C, C, Out, Op>(job.dst + offset, group, job.num_sources, units, job.scaling);
  }
  constexpr size_t kBlockUnits = kBlockBytes / C::Acc::kUnitBytes;
  for (size_t first = 0; first < units; first += kBlockUnits) {
    const size_t n = units - first < kBlockUnits ? units - first : kBlockUnits;
    fold_block<C, Out, Op>(job, offset + first * C::kUnitBytes, n);
  }
}

// The elements after the last whole unit, of any number of sources.
template <class C, class Out, class Op>
void fold_tail(const Job& job, size_t offset, size_t num_bytes) {
  alignas(kLineBytes) std::byte unit[C::kUnitBytes] = {};
  __builtin_memcpy(unit, job.sources[0] + offset, num_bytes);
  typename C::Value value = C::load(unit);
  for (size_t j = 1; j < job.num_sources; ++j) {
    __builtin_memcpy(unit, job.sources[j] + offset, num_bytes);
    value = combine<Op>(value, C::load(unit));
  }
  Out::store(unit, Out::times(value, job.scaling));
  __builtin_memcpy(job.dst + offset, unit, num_bytes);
}

// Units before the first whole cache line of dst, if units can end there: a store that straddles two lines
// costs twice as much.
template <class C>
size_t units_before_line(const std::byte* dst, size_t units) {
  const size_t lead = -reinterpret_cast<uintptr_t>(dst) % kLineBytes;
  const size_t lead_units = lead / C::kUnitBytes;
  return lead % C::kUnitBytes == 0 && units > 8 * lead_units ? lead_units : 0;
}

template <class C, class Out, class Op>
void fold_all(const Job& job, size_t count) {
  const size_t units = count / C::kLanes;
  const size_t lead = units_before_line<C>(job.dst, units);
  if (lead > 0) fold_range<C, Out, Op>(job, 0, lead);
  if (units > lead) fold_range<C, Out, Op>(job, lead * C::kUnitBytes, units - lead);
  if constexpr (C::kLanes > 1) {
    const size_t tail = count % C::kLanes;
    if (tail > 0) fold_tail<C, Out, Op>(job, units * C::kUnitBytes, tail * (C::kUnitBytes / C::kLanes));
  }
}

template <class C>
void copy_kernel(std::byte* dst, const std::byte* src, size_t count, double) {
  if (dst != src) __builtin_memcpy(dst, src, count * (C::kUnitBytes / C::kLanes));
}

// One source, written by the codec Out.
template <class C, class Out>
void scale_all(std::byte* dst, const std::byte* src, size_t count, Scaling scaling) {
  const size_t units = count / C::kLanes;
  fold<C, C, Out, Sum, 1>(dst, &src, units, scaling);
  if constexpr (C::kLanes > 1) {
    const size_t tail = count % C::kLanes;
    if (tail == 0) return;
    fold_tail<C, Out, Sum>({dst, &src, 1, scaling}, units * C::kUnitBytes, tail * (C::kUnitBytes / C::kLanes));
  }
}

// The codec of a type that applies a factor.
template <class C>
struct ScaledOf {
  using Type = C;
};
template <class T>
struct ScaledOf<Plain<T>> {
  using Type = Scaled<T>;
};

template <class C>
void scale_kernel(std::byte* dst, const std::byte* src, size_t count, double factor) {
  if (factor == 1.0) return copy_kernel<C>(dst, src, count, factor);
  scale_all<C, typename ScaledOf<C>::Type>(dst, src, count, {factor, 1.0});
}

// Integers fold a block, then scale it while it is in the cache: a factor is rare for them, and one loop for all
// operations keeps the code small.
template <class C, class Op>
void fold_then_scale(const Job& job, size_t count) {
  constexpr size_t kBlockUnits = kBlockBytes / C::kUnitBytes;
  for (size_t first = 0; first < count; first += kBlockUnits) {
    const size_t n = count - first < kBlockUnits ? count - first : kBlockUnits;
    std::byte* part = job.dst + first * C::kUnitBytes;
    fold_range<C, C, Op>(job, first * C::kUnitBytes, n);
    scale_kernel<C>(part, part, n, job.scaling.factor);
  }
}

template <class C, class Op>
void reduce_kernel(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count, double factor) {
  if (num_sources == 1) return scale_kernel<C>(dst, sources[0], count, factor);
  const Job job{dst, sources, num_sources, {factor, 1.0}};
  if constexpr (C::kScales) {
    fold_all<C, C, Op>(job, count);
  } else if (factor == 1.0) {
    fold_all<C, C, Op>(job, count);
  } else if constexpr (std::is_integral_v<typename C::Value>) {
    fold_then_scale<C, Op>(job, count);
  } else {
    fold_all<C, Scaled<typename C::Value>, Op>(job, count);
  }
}

// The sum, read by the codec C and written by Out.
template <class C, class Out>
void average_kernel(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count,
                    Scaling scaling) {
  if (num_sources == 1) return scale_all<C, Out>(dst, sources[0], count, scaling);
  fold_all<C, Out, Sum>({dst, sources, num_sources, scaling}, count);
}

// A bool has no factor.
template <class Op>
void reduce_bool_kernel(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count, double) {
  using C = Plain<uint8_t>;
  if (num_sources == 1) return copy_kernel<C>(dst, sources[0], count, 1.0);
  fold_all<C, C, Op>({dst, sources, num_sources, kUnscaled}, count);
}

inline void average_bool_kernel(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count,
                                Scaling) {
  reduce_bool_kernel<Or>(dst, sources, num_sources, count, 1.0);
}

// `Wide` is the codec that reads what is averaged.
template <class C, class Wide = C, class Out = Divided<typename ScaledOf<C>::Type>>
constexpr KernelRow make_row() {
  return {reduce_kernel<C, Sum>,     reduce_kernel<C, Min>,     reduce_kernel<C, Max>,
          reduce_kernel<C, Product>, average_kernel<Wide, Out>, scale_kernel<C>};
}

template <class T>
constexpr KernelRow make_integer_row() {
  using Wide = std::conditional_t<sizeof(T) == sizeof(int64_t), WideInInt128<T>, WideInFloat64<T>>;
  return make_row<Plain<T>, Wide, Wide>();
}

constexpr KernelTable make_table(const char* isa) {
  return {isa,
          {{reduce_bool_kernel<Or>, reduce_bool_kernel<And>, reduce_bool_kernel<Or>, reduce_bool_kernel<And>,
            average_bool_kernel, copy_kernel<Plain<uint8_t>>},
           make_integer_row<uint8_t>(),
           make_integer_row<int8_t>(),
           make_integer_row<uint16_t>(),
           make_integer_row<int16_t>(),
           make_integer_row<uint32_t>(),
           make_integer_row<int32_t>(),
           make_integer_row<uint64_t>(),
           make_integer_row<int64_t>(),
           make_row<Float16>(),
           make_row<BFloat16>(),
           make_row<Plain<float>>(),
           make_row<Plain<double>>()},
          {quantize_row<Int8>(), quantize_row<E4M3>(), quantize_row<E5M2>()},
          keep_error_kernel<false>,
          keep_error_kernel<true>};
}

}  // namespace hvd::HVD_REDUCE_ISA
