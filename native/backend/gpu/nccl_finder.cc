#include "backend/gpu/nccl_finder.h"

#include "base/error.h"

namespace hvd {

void NcclFinder::find() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(looked_, true)) return;
  if (!wanted_) {
    trouble_ = "the settings leave it out";
    return;
  }
  try {
    library_ = nccl::load_library(candidates_);
  } catch (const Error& error) {
    trouble_ = error.what();
  }
}

std::shared_ptr<const nccl::Library> NcclFinder::library() {
  find();
  return library_;
}

std::string NcclFinder::trouble() {
  find();
  return trouble_;
}

}  // namespace hvd
