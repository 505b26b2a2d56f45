// Where messages go that have no handle to travel with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace hvd {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Writes one line to standard error.
void log_to_stderr(LogLevel level, const std::string& message);

}  // namespace hvd
