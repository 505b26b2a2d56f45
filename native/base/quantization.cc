#include "base/quantization.h"

#include <string>

#include "base/error.h"

namespace hvd {

std::string_view name_of(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kFp8E4M3:
      return "fp8";
    case Quantization::kFp8E5M2:
      return "fp8_e5m2";
    case Quantization::kAuto:
      return "auto";
  }
  return "unknown";
}

Quantization quantization_of(int64_t number) {
  if (number < 0 || number > static_cast<int64_t>(Quantization::kAuto)) {
    throw Error(ErrorKind::kUsage, "unknown quantization " + std::to_string(number));
  }
  return static_cast<Quantization>(number);
}

}  // namespace hvd
