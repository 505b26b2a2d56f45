#include "reduce/kernels.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <string>

#include "base/error.h"
#include "reduce/kernel_table.h"
#include "reduce/processor.h"

namespace hvd {
namespace {

// The table for a name if this processor can run it, else nullptr.
const KernelTable* find_table(std::string_view isa) {
  if (!processor_has(isa)) return nullptr;
#if defined(__x86_64__)
  if (isa == "avx512") return &reduce_avx512::kTable;
  if (isa == "avx2") return &reduce_avx2::kTable;
#endif
  return &reduce_base::kTable;
}

const KernelTable* find_best_table() {
  for (const std::string_view isa : {"avx512", "avx2"}) {
    if (const KernelTable* found = find_table(isa)) return found;
  }
  return &reduce_base::kTable;
}

// Threads that come first together all find the same table.
std::atomic<const KernelTable*> active_table{nullptr};

const KernelRow& row_of(DType dtype) { return kernel_table().rows[static_cast<size_t>(dtype)]; }

ReduceKernel kernel_for(DType dtype, ReduceOp op) {
  const KernelRow& row = row_of(dtype);
  switch (op) {
    case ReduceOp::kSum:
      return row.sum;
    case ReduceOp::kMin:
      return row.min;
    case ReduceOp::kMax:
      return row.max;
    case ReduceOp::kProduct:
      return row.product;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  throw Error(ErrorKind::kInternal, "There is no element-wise kernel for " + std::string(name_of(op)) + " of " +
                                        std::string(name_of(dtype)) +
                                        "; the caller must turn it into Sum, Min, Max or Product.");
}

}  // namespace

const KernelTable& kernel_table() {
  const KernelTable* current = active_table.load(std::memory_order_acquire);
  if (current == nullptr) {
    const KernelTable* best = find_best_table();
    // Keeps what select_kernel_isa may have chosen meanwhile.
    if (active_table.compare_exchange_strong(current, best, std::memory_order_acq_rel)) current = best;
  }
  return *current;
}

void reduce(DType dtype, ReduceOp op, std::byte* dst, std::span<const std::byte* const> sources, size_t count,
            double factor) {
  const ReduceKernel kernel = kernel_for(dtype, op);
  if (sources.empty()) {
    throw Error(ErrorKind::kInternal, std::string(name_of(op)) + " of " + std::string(name_of(dtype)) +
                                          " was called without a source; at least one is needed.");
  }
  if (count > 0) kernel(dst, sources.data(), sources.size(), count, factor);
}

void average(DType dtype, std::byte* dst, std::span<const std::byte* const> sources, size_t count, double factor,
             int divisor) {
  // To divide by a power of two is to multiply by its inverse.
  const bool multiplies = factor == 1.0 && is_floating(dtype) && std::has_single_bit(static_cast<unsigned>(divisor));
  if (divisor == 1 || multiplies || sources.empty()) {
    return reduce(dtype, ReduceOp::kSum, dst, sources, count, multiplies ? 1.0 / divisor : factor);
  }
  if (count == 0) return;
  const Scaling scaling =
      is_floating(dtype) ? Scaling{factor, static_cast<double>(divisor)} : integer_scaling(dtype, factor, divisor);
  row_of(dtype).average(dst, sources.data(), sources.size(), count, scaling);
}

void scale(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor) {
  if (count > 0) row_of(dtype).scale(dst, src, count, factor);
}

double integer_average_factor(double factor, int divisor) {
  const double quotient = factor / divisor;
  const double missing = std::fma(quotient, -divisor, factor);
  const bool too_small = factor > 0 ? missing > 0 : missing < 0;
  return too_small ? std::nextafter(quotient, std::copysign(HUGE_VAL, factor)) : quotient;
}

Scaling integer_scaling(DType dtype, double factor, int divisor) {
  if (factor == 1.0 && size_of(dtype) == sizeof(int64_t)) return {1.0, static_cast<double>(divisor)};
  return {integer_average_factor(factor, divisor), 1.0};
}

std::string_view kernel_isa() { return kernel_table().isa; }

bool select_kernel_isa(std::string_view isa) {
  const KernelTable* found = find_table(isa);
  if (found == nullptr) return false;
  active_table.store(found, std::memory_order_release);
  return true;
}

}  // namespace hvd
