// NCCL's functions, declared by hand and found at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace hvd::nccl {

struct Functions;  // abi.h

struct Library {
  std::shared_ptr<const Functions> functions;
  std::string path;
  int version = 0;  // 22907 is 2.29.7
  bool is_rccl = false;
  std::string warning;  // of a version with a known fault, or empty

  [[nodiscard]] std::string name() const;  // "NCCL 2.29.7"
};

// Takes a library that the process has loaded already before all others. Throws Error (kUsage) that lists what was
// tried and why each did not do.
[[nodiscard]] std::shared_ptr<const Library> load_library(const std::vector<std::string>& candidates);

// 22907 -> "2.29.7"
[[nodiscard]] std::string version_text(int version);
// What is known to be wrong with a version of NCCL and how it is avoided, or empty.
[[nodiscard]] std::string known_fault(int version);

}  // namespace hvd::nccl
