#include "bindings/waiting_threads.h"

#include <pthread.h>

#include <mutex>
#include <set>

namespace hvd::bindings {
namespace {

struct Registry {
  std::mutex mutex;
  std::multiset<uint64_t> threads;
};

// Outlives all threads.
Registry& registry() {
  static auto* const made = new Registry();
  return *made;
}

}  // namespace

void WaitsLong::begin() {
  if (thread_ != 0) return;
  thread_ = pthread_self();
  const std::lock_guard lock(registry().mutex);
  registry().threads.insert(thread_);
}

WaitsLong::~WaitsLong() {
  if (thread_ == 0) return;
  const std::lock_guard lock(registry().mutex);
  registry().threads.erase(registry().threads.find(thread_));
}

bool waits_long(uint64_t thread) {
  const std::lock_guard lock(registry().mutex);
  return registry().threads.contains(thread);
}

}  // namespace hvd::bindings
