#include "reduce/processor.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hvd {
namespace {

// Asked of the processor itself: __builtin_cpu_supports does not know F16C in every compiler, and needs variables that
// a library of the compiler fills, which zig's does not.
#if defined(__x86_64__)
struct Registers {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
};

// All 0 where the processor does not know the leaf.
Registers leaf(uint32_t number) {
  Registers read;
  if (__get_cpuid_count(number, 0, &read.eax, &read.ebx, &read.ecx, &read.edx) == 0) return {};
  return read;
}

bool has(uint32_t value, uint32_t bits) { return (value & bits) == bits; }

// Whether the system keeps the registers of these kinds when it switches threads.
bool system_saves(uint32_t kinds) {
  if (!has(leaf(1).ecx, bit_OSXSAVE)) return false;
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has(low, kinds);
}

constexpr uint32_t kXmmYmm = 0x06;
constexpr uint32_t kXmmYmmMaskZmm = 0xe6;

bool has_avx2() {
  return system_saves(kXmmYmm) && has(leaf(1).ecx, bit_AVX | bit_FMA | bit_F16C) && has(leaf(7).ebx, bit_AVX2);
}

bool has_avx512() {
  constexpr uint32_t kParts = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  return has_avx2() && system_saves(kXmmYmmMaskZmm) && has(leaf(7).ebx, kParts);
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

}  // namespace

bool processor_has(std::string_view isa) {
  if (isa == "avx512") return has_avx512();
  if (isa == "avx2") return has_avx2();
  return isa == "base";
}

}  // namespace hvd
