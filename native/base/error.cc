#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace hvd {

void throw_errno(const std::string& what) {
  throw Error(ErrorKind::kInternal, what + ": " + std::generic_category().message(errno));
}

}  // namespace hvd
