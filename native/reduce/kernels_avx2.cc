// The kernels for processors with AVX2, FMA and F16C; CMakeLists.txt has the flags.
#define HVD_REDUCE_ISA reduce_avx2
#include "reduce/kernels_impl.h"

namespace hvd::HVD_REDUCE_ISA {

constinit const KernelTable kTable = make_table("avx2");

}  // namespace hvd::HVD_REDUCE_ISA
