// Sleeping on a 32-bit word, also one in memory that processes share.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace hvd {

// Sleeps while `word` holds `expected`, at most for `timeout`. May return early without a reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::optional<Duration> timeout);

void futex_wake_all(const std::atomic<uint32_t>& word);

}  // namespace hvd
