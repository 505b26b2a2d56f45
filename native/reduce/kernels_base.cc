// The kernels that every processor of the architecture can run.
#define HVD_REDUCE_ISA reduce_base
#include "reduce/kernels_impl.h"

namespace hvd::HVD_REDUCE_ISA {

constinit const KernelTable kTable = make_table("base");

}  // namespace hvd::HVD_REDUCE_ISA
