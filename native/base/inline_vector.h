// A vector whose first elements need no memory of their own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

namespace hvd {

// As std::vector; up to kInPlace elements lie in the object itself, for lists of which there are many and that mostly
// are short. Unlike with std::vector, a move also moves elements, so what refers to them is void behind it.
template <typename T, size_t kInPlace>
class InlineVector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  InlineVector() = default;
  InlineVector(std::initializer_list<T> elements) : InlineVector(elements.begin(), elements.end()) {}
  InlineVector(std::vector<T> elements) : size_(elements.size()) {  // NOLINT(google-explicit-constructor)
    if (size_ > kInPlace) {
      longer_ = std::move(elements);
    } else {
      std::move(elements.begin(), elements.end(), in_place_.begin());
    }
  }
  template <std::input_iterator Iterator>
  InlineVector(Iterator first, Iterator last) : size_(static_cast<size_t>(std::distance(first, last))) {
    if (size_ > kInPlace) {
      longer_.assign(first, last);
    } else {
      std::copy(first, last, in_place_.begin());
    }
  }

  InlineVector(const InlineVector&) = default;
  InlineVector& operator=(const InlineVector&) = default;
  InlineVector(InlineVector&& other) noexcept
      : size_(std::exchange(other.size_, 0)),
        in_place_(std::move(other.in_place_)),
        longer_(std::exchange(other.longer_, {})) {}
  InlineVector& operator=(InlineVector&& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    in_place_ = std::move(other.in_place_);
    longer_ = std::exchange(other.longer_, {});
    return *this;
  }
  ~InlineVector() = default;

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T* data() { return size_ > kInPlace ? longer_.data() : in_place_.data(); }
  [[nodiscard]] const T* data() const { return size_ > kInPlace ? longer_.data() : in_place_.data(); }
  [[nodiscard]] T* begin() { return data(); }
  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] T* end() { return data() + size_; }
  [[nodiscard]] const T* end() const { return data() + size_; }
  [[nodiscard]] T& operator[](size_t index) { return data()[index]; }
  [[nodiscard]] const T& operator[](size_t index) const { return data()[index]; }
  [[nodiscard]] T& front() { return data()[0]; }
  [[nodiscard]] const T& front() const { return data()[0]; }
  [[nodiscard]] T& back() { return data()[size_ - 1]; }
  [[nodiscard]] const T& back() const { return data()[size_ - 1]; }

  void push_back(const T& element) {
    if (size_ < kInPlace) {
      in_place_[size_++] = element;
    } else {
      T copied = element;  // which may be one of these
      emplace_back() = std::move(copied);
    }
  }
  T& emplace_back() {
    resize(size_ + 1);
    return back();
  }
  void pop_back() { resize(size_ - 1); }
  // Further elements are as T makes them by itself.
  void resize(size_t size) {
    if (size > kInPlace) {
      if (size_ <= kInPlace) longer_.assign(std::make_move_iterator(begin()), std::make_move_iterator(end()));
      longer_.resize(size);
    } else {
      const auto kept = static_cast<std::ptrdiff_t>(std::min(size, size_));
      if (size_ > kInPlace) std::move(longer_.begin(), longer_.begin() + kept, in_place_.begin());
      longer_.clear();
      std::fill(in_place_.begin() + kept, in_place_.end(), T());
    }
    size_ = size;
  }
  void clear() { resize(0); }

  [[nodiscard]] bool operator==(const InlineVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  size_t size_ = 0;
  std::array<T, kInPlace> in_place_{};
  std::vector<T> longer_;  // all elements, if there are more
};

}  // namespace hvd
