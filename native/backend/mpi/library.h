// Finds an MPI library with the standard binary interface while the program runs.
#pragma once

#include <string>
#include <vector>

#include "backend/mpi/abi.h"

namespace hvd::mpi {

struct Library {
  Functions functions;
  std::string path;     // as it was found
  std::string version;  // what the library says of itself, the first line
};

// Loads the first of these that there is: paths, or names for the system's loader. The library is never unloaded.
// Throws Error (kUsage) that says why for each, if there is none.
[[nodiscard]] Library load_library(const std::vector<std::string>& candidates);

}  // namespace hvd::mpi
