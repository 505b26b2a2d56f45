// One error tree for native code; bindings/errors.cc maps it on horovod.errors once.
#pragma once

#include <stdexcept>
#include <string>

namespace hvd {

enum class ErrorKind : uint8_t {
  kUsage,          // the call is wrong; only the caller sees it
  kDuplicateName,  // a kind of usage error
  kMismatch,       // ranks disagree
  kPeerLost,       // a rank died or its connection broke
  kShutDown,       // this rank or a peer has shut down
  kStalled,        // ranks did not submit in time
  kInternal,       // a bug in Horovod, or the system refused something
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Throws kInternal with the text of errno.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace hvd
