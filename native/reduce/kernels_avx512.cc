// The kernels for processors with AVX-512 (F, BW, VL, DQ); CMakeLists.txt has the flags.
#define HVD_REDUCE_ISA reduce_avx512
#include "reduce/kernels_impl.h"

namespace hvd::HVD_REDUCE_ISA {

constinit const KernelTable kTable = make_table("avx512");

}  // namespace hvd::HVD_REDUCE_ISA
