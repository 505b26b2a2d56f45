// Which instruction sets of this processor the kernels may use.
#pragma once

#include <string_view>

namespace hvd {

// "avx512" or "avx2", as the kernels for it need them, and "base", which every processor has.
[[nodiscard]] bool processor_has(std::string_view isa);

}  // namespace hvd
