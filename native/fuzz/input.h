// The fuzzer's bytes as a stream of choices. At its end it goes on with zeros, so that each input is a whole run.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "base/wire.h"

namespace hvd::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(data, size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }

  template <typename T>
    requires std::is_arithmetic_v<T>
  [[nodiscard]] T take() {
    T value{};
    const size_t count = std::min(sizeof(T), rest_.size());
    if (count > 0) std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  // One of the numbers 0 to n - 1.
  [[nodiscard]] size_t below(size_t n) { return take<uint8_t>() % n; }
  [[nodiscard]] bool flip() { return below(2) == 1; }
  // At most `most` bytes.
  [[nodiscard]] Bytes bytes(size_t most) {
    const size_t count = std::min({static_cast<size_t>(take<uint16_t>()), most, rest_.size()});
    const auto head = std::as_bytes(rest_.first(count));
    rest_ = rest_.subspan(count);
    return {head.begin(), head.end()};
  }
  [[nodiscard]] std::span<const uint8_t> rest() const { return rest_; }
  // Mostly a number that makes sense somewhere, sometimes any.
  [[nodiscard]] int64_t number() {
    static constexpr std::array<int64_t, 14> kUsual{0, 1, 2, 3, 4, 5, 8, -1, 16, 64, 1 << 20, -2, INT64_MAX, INT64_MIN};
    const size_t choice = below(kUsual.size() + 1);
    return choice < kUsual.size() ? kUsual[choice] : take<int64_t>();
  }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace hvd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
