// What TensorFlow calls when an operation runs on the CPU.
#pragma once

namespace hvd::tensorflow {

void register_kernels();

}  // namespace hvd::tensorflow
