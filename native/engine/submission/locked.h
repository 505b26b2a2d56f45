// Data that can only be reached with their lock held.
#pragma once

#include <mutex>
#include <optional>
#include <utility>

namespace hvd {

template <class T>
class Guarded;

// The lock, and what it guards. Whoever is passed one need not ask whether the lock is held.
template <class T>
class Locked {
 public:
  Locked(Locked&&) noexcept = default;
  Locked& operator=(Locked&&) = delete;
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() = default;

  [[nodiscard]] T* operator->() const { return data_; }
  [[nodiscard]] T& operator*() const { return *data_; }

  // Lets go before the end of the scope; the data must not be used any more.
  void unlock() { lock_.unlock(); }

 private:
  template <class U>
  friend class Guarded;
  Locked(std::unique_lock<std::mutex> lock, T& data) : lock_(std::move(lock)), data_(&data) {}

  std::unique_lock<std::mutex> lock_;
  T* data_;
};

template <class T>
class Guarded {
 public:
  template <class... Arguments>
  explicit Guarded(Arguments&&... arguments) : data_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] Locked<T> lock() { return {std::unique_lock(mutex_), data_}; }
  [[nodiscard]] Locked<const T> lock() const { return {std::unique_lock(mutex_), data_}; }
  // Nothing if somebody else holds it.
  [[nodiscard]] std::optional<Locked<T>> try_lock() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return std::nullopt;
    return Locked<T>(std::move(lock), data_);
  }

 private:
  mutable std::mutex mutex_;
  T data_;
};

}  // namespace hvd
