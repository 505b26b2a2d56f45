#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hvd {

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::optional<Duration> timeout) {
  timespec limit{};
  if (timeout) {
    const auto left = std::max(*timeout, Duration::zero()).count();
    limit.tv_sec = left / 1'000'000'000;
    limit.tv_nsec = left % 1'000'000'000;
  }
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout ? &limit : nullptr, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hvd
