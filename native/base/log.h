// Where messages go that have no handle to travel with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace hvd {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Writes a message to standard error, in one piece.
void log_to_stderr(LogLevel level, const std::string& message, bool with_time);

}  // namespace hvd
