#include "backend/staged/copies.h"

#include "base/error.h"

namespace hvd::staged {
namespace {

// Copies that have begun take milliseconds, unless the device hangs.
constexpr Duration kLastCopiesTime = std::chrono::seconds(2);

device::Stream take_stream(Site& site) {
  if (site.idle.empty()) return site.gpu->make_stream(true);
  const device::Stream stream = site.idle.back();
  site.idle.pop_back();
  return stream;
}

}  // namespace

Site::Site(std::shared_ptr<device::Gpu> of, size_t block_bytes, size_t max_blocks)
    : gpu(std::move(of)), pool(std::make_shared<device::PinnedPool>(gpu, block_bytes, max_blocks)) {}

Site::~Site() {
  for (const device::Stream stream : idle) gpu->destroy_stream(stream);
}

CopyLane::CopyLane(std::shared_ptr<Site> site, std::shared_ptr<Bell> bell)
    : site_(std::move(site)), bell_(std::move(bell)), copies_(take_stream(*site_)), rings_(take_stream(*site_)) {}

CopyLane::~CopyLane() {
  for (const device::Stream stream : {copies_, rings_}) {
    if (ended_) {
      site_->idle.push_back(stream);
    } else {
      site_->gpu->destroy_stream(stream);
    }
  }
}

device::SharedEvent CopyLane::mark() {
  device::SharedEvent event = site_->gpu->record(copies_);
  event->hold(rings_);
  site_->gpu->call_behind(rings_, [bell = bell_] { bell->ring(); });
  return event;
}

Block BlockQueue::try_take(const void* execution, device::PinnedPool& pool) {
  if (waiting_.empty() || waiting_.front() != execution) return nullptr;
  Block block = pool.try_take(num_held_->load() == 0);
  if (block == nullptr) return nullptr;
  num_held_->fetch_add(1);
  std::byte* memory = block.get();
  const auto give_back = [num_held = num_held_, block = std::move(block)](std::byte*) mutable {
    block.reset();
    num_held->fetch_sub(1);
  };
  return {memory, give_back};
}

void Keeper::keep(device::Gpu& gpu, device::Stream stream, std::vector<Block> blocks) {
  auto kept = std::make_shared<std::vector<Block>>(std::move(blocks));
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->num_kept;
  }
  const auto release = [state = state_, kept] {
    const std::lock_guard lock(state->mutex);
    kept->clear();
    --state->num_kept;
    state->changed.notify_all();
  };
  try {
    gpu.call_behind(stream, release);
  } catch (const Error&) {  // already reported: the device has failed, and no copy runs on it any more
    release();
  }
}

void Keeper::wait() {
  std::unique_lock lock(state_->mutex);
  if (hopeless_) return;
  const auto until = std::chrono::steady_clock::now() + kLastCopiesTime;
  hopeless_ = !state_->changed.wait_until(lock, until, [&] { return state_->num_kept == 0; });
}

}  // namespace hvd::staged
