#include "base/log.h"

#include <array>
#include <cstdio>
#include <ctime>

namespace hvd {

namespace {

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S ", &local)};
}

}  // namespace

void log_to_stderr(LogLevel level, const std::string& message, bool with_time) {
  const char* word = level == LogLevel::kInfo ? "info" : level == LogLevel::kWarning ? "warning" : "error";
  const std::string line =
      std::string("[") + (with_time ? time_of_day() : "") + "horovod " + word + "] " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace hvd
