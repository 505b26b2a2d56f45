#include "base/log.h"

#include <cstdio>

namespace hvd {

void log_to_stderr(LogLevel level, const std::string& message) {
  const char* word = level == LogLevel::kInfo ? "info" : level == LogLevel::kWarning ? "warning" : "error";
  const std::string line = std::string("[horovod ") + word + "] " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace hvd
