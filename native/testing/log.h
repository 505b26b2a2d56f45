// Collects what engines log.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "engine/submission/operation.h"

namespace hvd::testing {

struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;

  LogSink sink() {
    return [this](LogLevel, const std::string& message) {
      const std::lock_guard lock(mutex);
      lines.push_back(message);
    };
  }
  size_t size() {
    const std::lock_guard lock(mutex);
    return lines.size();
  }
  // The first message; waits for it up to 20 s.
  std::string wait_for_line() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const Operation nobodys;
    while (size() == 0 && std::chrono::steady_clock::now() < until) {
      static_cast<void>(nobodys.wait_done(std::chrono::milliseconds(10)));
    }
    const std::lock_guard lock(mutex);
    return lines.empty() ? "nothing was logged" : lines.front();
  }
};

}  // namespace hvd::testing
