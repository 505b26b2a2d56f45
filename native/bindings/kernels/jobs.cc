#include "bindings/kernels/jobs.h"

#include <utility>

namespace hvd::kernels {

std::string mismatch_of(const HvdInterface& interface) {
  const std::string cure = "; files of two versions of Horovod are mixed: uninstall horovod, then install it again";
  if (interface.version != kHvdInterfaceVersion) {
    return "this library speaks version " + std::to_string(int{kHvdInterfaceVersion}) +
           " of the interface between Horovod's libraries, but horovod._native speaks version " +
           std::to_string(interface.version) + cure;
  }
  const bool fits = interface.size == sizeof(HvdInterface) && interface.request_size == sizeof(HvdRequest) &&
                    interface.buffer_size == sizeof(HvdBuffer);
  if (fits) return "";
  return "this library and horovod._native lay the interface between Horovod's libraries out in different ways" + cure;
}

std::optional<Members> Job::find_process_set(int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = process_sets_.find(number);
  if (found == process_sets_.end()) return std::nullopt;
  return found->second;
}

void Job::set_process_set(int64_t number, Members members) {
  const std::lock_guard lock(mutex_);
  process_sets_[number] = std::move(members);
}

void Job::forget_process_set(int64_t number) {
  const std::lock_guard lock(mutex_);
  process_sets_.erase(number);
}

std::shared_ptr<Job> Jobs::find(int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(number);
  return found == jobs_.end() ? nullptr : found->second;
}

// What was there goes without the lock: the last reference to an engine may go with it.
void Jobs::begin(int64_t number, std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  jobs_[number].swap(job);
}

void Jobs::end(int64_t number) {
  std::shared_ptr<Job> ended;
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  ended.swap(found->second);
  jobs_.erase(found);
}

Jobs& jobs() {
  static auto* made = new Jobs();
  return *made;
}

}  // namespace hvd::kernels
