// Bytes of control messages: little-endian scalars, length-prefixed strings and lists.
// The reader checks every length against what is left, so a damaged message ends in an Error, never beyond its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace hvd {

using Bytes = std::vector<std::byte>;

class WireWriter {
 public:
  WireWriter() { bytes_.reserve(kUsualBytes); }

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void put_string(const std::string& text) { put_bytes(std::as_bytes(std::span(text))); }
  void put_bytes(std::span<const std::byte> data) {
    put(static_cast<uint32_t>(data.size()));
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  template <typename List>
  void put_list(const List& values) {
    put(static_cast<uint32_t>(values.size()));
    for (const auto& value : values) put(value);
  }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

 private:
  static constexpr size_t kUsualBytes = 64;

  Bytes bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  [[nodiscard]] std::string get_string() {
    const auto data = get_bytes();
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }
  [[nodiscard]] std::span<const std::byte> get_bytes() { return take(get<uint32_t>()); }
  template <typename T>
  [[nodiscard]] std::vector<T> get_list() {
    std::vector<T> values(get_count(sizeof(T)));
    for (T& value : values) value = get<T>();
    return values;
  }
  // The length of a list whose elements take at least `element_bytes` each.
  [[nodiscard]] uint32_t get_count(size_t element_bytes) {
    const auto count = get<uint32_t>();
    if (count > rest_.size() / element_bytes) throw_damaged();
    return count;
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> take(size_t size) {
    if (size > rest_.size()) throw_damaged();
    const auto head = rest_.first(size);
    rest_ = rest_.subspan(size);
    return head;
  }
  [[noreturn]] static void throw_damaged() {
    throw Error(ErrorKind::kInternal, "a control message ends too early: the peer runs another version, or a bug");
  }

  std::span<const std::byte> rest_;
};

}  // namespace hvd
