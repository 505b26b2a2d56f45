// One error tree for native code; bindings/errors.cc maps it on horovod.errors once.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace hvd {

enum class ErrorKind : uint8_t {
  kUsage,          // the call is wrong; only the caller sees it
  kDuplicateName,  // a kind of usage error
  kUnsupported,    // likewise: a reduction of what it is not made for
  kMismatch,       // ranks disagree
  kPeerLost,       // a rank died or its connection broke
  kShutDown,       // this rank or a peer has shut down
  kStalled,        // ranks did not submit in time
  kInternal,       // a bug in Horovod, or the system refused something; stays the last, see control.cc
};

// Copies share nothing: an operation keeps its error while callers of other threads throw theirs.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
};

// Runs `body`, which looks at what a rank sent; what it throws names that rank.
template <class Body>
decltype(auto) naming_sender(int rank, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.kind(), "rank " + std::to_string(rank) + ": " + error.what());
  }
}

// Throws kInternal with the text of errno.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace hvd
