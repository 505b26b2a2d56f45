#include "cuda/device.h"

#include <unistd.h>

#include <utility>

#include "cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr uintptr_t kFirstHandle = 0x10000;
constexpr std::chrono::milliseconds kEndPatience{5000};

struct AtEnd {
  AtEnd() = default;
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() { Driver::get().end(); }
};

}  // namespace

// Never destroyed: threads may call while the process ends.
Driver& Driver::get() {
  static auto* const driver = new Driver;
  static const AtEnd at_end;
  return *driver;
}

Driver::Driver() : process_(getpid()) {
  for (const int number : settings().devices) {
    devices_.push_back(std::make_unique<Device>());
    devices_.back()->number = number;
  }
  primaries_.resize(devices_.size());
}

Device* Driver::device(int index) {
  return index >= 0 && index < device_count() ? devices_[static_cast<size_t>(index)].get() : nullptr;
}

std::string Driver::uuid_of(const Device& device) const {
  std::string uuid = "fake GPU, 000000";
  uuid[9] = static_cast<char>(settings().host);
  uuid[15] = static_cast<char>(device.number);
  return uuid;
}

// Never given out twice, so that a stale one is noticed.
void* Driver::make_handle() {
  last_handle_ += 16;
  return reinterpret_cast<void*>(kFirstHandle + last_handle_);
}

Result Driver::retain(int index, void** context) {
  Device* its_device = device(index);
  if (its_device == nullptr) return kInvalidDevice;
  const std::lock_guard lock(mutex_);
  Primary& primary = primaries_[static_cast<size_t>(index)];
  if (primary.retained++ == 0) {
    primary.handle = make_handle();
    primary.context = std::make_shared<Context>(*its_device);
    ++its_device->contexts_made;
  }
  *context = primary.handle;
  return its_device->error;
}

Result Driver::release(int index) {
  if (device(index) == nullptr) return kInvalidDevice;
  SharedContext gone;
  {
    const std::lock_guard lock(mutex_);
    Primary& primary = primaries_[static_cast<size_t>(index)];
    if (primary.retained == 0) return kInvalidContext;
    if (--primary.retained == 0) gone = std::exchange(primary.context, nullptr);
  }
  if (gone != nullptr) drop_all_of(gone);
  return kSuccess;
}

void Driver::drop_all_of(const SharedContext& context) {
  context->alive = false;
  std::vector<std::shared_ptr<Stream>> stopped{std::exchange(context->default_stream, nullptr)};
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [&](const auto& entry) {
      if (entry.second->context() != context.get()) return false;
      stopped.push_back(entry.second);
      return true;
    });
    std::erase_if(events_, [&](const auto& entry) { return entry.second->context == context; });
  }
  for (std::shared_ptr<Stream>& stream : stopped) {
    if (stream == nullptr) continue;
    stream->stop();
    dismiss(std::move(stream));
  }
  memory_.drop_all_of(context.get());
}

bool Driver::has_context(int index) { return primary(index) != nullptr; }

SharedContext Driver::context(const void* handle) {
  const std::shared_lock lock(mutex_);
  for (const Primary& primary : primaries_) {
    if (primary.context != nullptr && primary.handle == handle) return primary.context;
  }
  return nullptr;
}

SharedContext Driver::primary(int index) {
  const std::shared_lock lock(mutex_);
  return primaries_[static_cast<size_t>(index)].context;
}

SharedContext Driver::context_of(const Stream& stream) {
  const std::shared_lock lock(mutex_);
  for (const Primary& primary : primaries_) {
    if (primary.context != nullptr && primary.context.get() == stream.context()) return primary.context;
  }
  return nullptr;
}

void* Driver::handle_of(const SharedContext& context) {
  const std::shared_lock lock(mutex_);
  for (const Primary& primary : primaries_) {
    if (primary.context == context) return primary.handle;
  }
  return nullptr;
}

int Driver::index_of(const Device& device) const {
  for (int i = 0; i < device_count(); ++i) {
    if (devices_[static_cast<size_t>(i)].get() == &device) return i;
  }
  return -1;
}

void* Driver::make_stream(const SharedContext& context, unsigned flags, int priority) {
  auto made = std::make_shared<Stream>(context->device, context.get(), flags, priority);
  if (made->waits_for_default()) {
    const std::lock_guard lock(context->mutex);
    context->blocking.push_back(made);
  }
  const std::lock_guard lock(mutex_);
  void* handle = make_handle();
  streams_[handle] = std::move(made);
  return handle;
}

std::shared_ptr<Stream> Driver::stream(const void* handle) {
  const std::shared_lock lock(mutex_);
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second;
}

std::shared_ptr<Stream> Driver::default_stream(const SharedContext& context) {
  const std::lock_guard lock(context->mutex);
  if (context->default_stream == nullptr && context->alive) {
    context->default_stream = std::make_shared<Stream>(context->device, context.get(), 0, 0);
  }
  return context->default_stream;
}

Result Driver::destroy_stream(const void* handle) {
  std::shared_ptr<Stream> gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(handle);
    if (found == streams_.end()) return kInvalidHandle;
    gone = std::move(found->second);
    streams_.erase(found);
  }
  gone->close();
  dismiss(std::move(gone));
  return kSuccess;
}

// What is still queued is done, as by the driver.
void Driver::dismiss(std::shared_ptr<Stream> stream) {
  reap(std::chrono::milliseconds(0));
  const std::lock_guard lock(leaving_mutex_);
  leaving_.push_back(std::move(stream));
}

void Driver::reap(std::chrono::milliseconds patience) {
  const std::lock_guard lock(leaving_mutex_);
  std::erase_if(leaving_, [&](const auto& left) { return left->try_join(patience); });
}

Stream::Work Driver::waits_for(const Point& point, const std::shared_ptr<Stream>& waiter) {
  return [point, raw = waiter.get()] {
    if (point.stream->wait_until_reached(point.place, raw) || raw->is_ending()) return;
    const Result its_error = point.stream->device().error;
    raw->device().error = its_error != kSuccess ? its_error : kLaunchTimeout;
  };
}

uint64_t Driver::add(const SharedContext& context, const std::shared_ptr<Stream>& stream, Stream::Work work) {
  if (!stream->waits_for_default()) return stream->add(std::move(work));
  const std::lock_guard lock(context->mutex);
  if (stream == context->default_stream) {
    for (const auto& weak : context->blocking) {
      if (const auto other = weak.lock()) stream->add(waits_for({other, other->last()}, stream));
    }
  } else if (context->default_stream != nullptr) {
    stream->add(waits_for({context->default_stream, context->default_stream->last()}, stream));
  }
  return stream->add(std::move(work));
}

void* Driver::make_event(const SharedContext& context) {
  const std::lock_guard lock(mutex_);
  void* handle = make_handle();
  events_[handle] = std::make_shared<Event>(context);
  return handle;
}

std::shared_ptr<Event> Driver::event(const void* handle) {
  const std::shared_lock lock(mutex_);
  const auto found = events_.find(handle);
  return found == events_.end() ? nullptr : found->second;
}

bool Driver::destroy_event(const void* handle) {
  const std::lock_guard lock(mutex_);
  return events_.erase(handle) > 0;
}

int64_t Driver::alive(const std::string& what) {
  if (what == "allocations") return static_cast<int64_t>(memory_.num_blocks());
  if (what == "allocated bytes") return static_cast<int64_t>(memory_.num_bytes());
  if (what == "pinned blocks") return static_cast<int64_t>(memory_.num_pinned());
  if (what == "pinned bytes") return static_cast<int64_t>(memory_.num_pinned_bytes());
  const std::shared_lock lock(mutex_);
  if (what == "streams") return static_cast<int64_t>(streams_.size());
  if (what == "events") return static_cast<int64_t>(events_.size());
  int64_t contexts = 0;
  for (const Primary& primary : primaries_) contexts += primary.context == nullptr ? 0 : 1;
  return what == "contexts" ? contexts : -1;
}

void Driver::end() {
  // The child of a fork has none of the threads.
  const bool is_child = getpid() != process_;
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::lock_guard lock(leaving_mutex_);
    all = std::exchange(leaving_, {});
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) all.push_back(stream);
    for (const Primary& primary : primaries_) {
      if (primary.context != nullptr) all.push_back(primary.context->default_stream);
    }
  }
  std::erase(all, nullptr);
  for (const auto& stream : all) {
    if (!is_child) stream->stop();
  }
  for (const auto& stream : all) {
    if (is_child || stream->try_join(kEndPatience)) continue;
    // It is in a function of the host that does not return: the thread must find its stream even so.
    stream->abandon();
    new std::shared_ptr<Stream>(stream);
  }
}

}  // namespace fake_cuda
