#include "device/gpu.h"

#include <array>
#include <list>
#include <map>
#include <utility>

#include "base/error.h"

namespace hvd::device {
namespace {

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1;  // pinned for every context of the process
constexpr int kMostNameBytes = 256;

// Engines of several threads share the GPUs of a driver. Nothing here keeps one alive.
struct Gpus {
  std::mutex mutex;
  std::map<std::pair<const Driver*, int>, std::weak_ptr<Gpu>> by_index;
};

Gpus& gpus() {
  static Gpus all;
  return all;
}

std::string to_hex(const Uuid& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : uuid.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// What streams will call. A device that fails never does, and then it stays here; the driver may call while the process
// ends, so this is never destroyed.
struct Call {
  std::function<void()> function;
  std::list<Call>::iterator place;
};

struct Calls {
  std::mutex mutex;
  std::list<Call> waiting;
};

Calls& calls() {
  static auto* const all = new Calls;
  return *all;
}

Call* add_call(std::function<void()> function) {
  const std::lock_guard lock(calls().mutex);
  Call& call = calls().waiting.emplace_back(Call{std::move(function), {}});
  call.place = std::prev(calls().waiting.end());
  return &call;
}

std::function<void()> take_call(Call* call) {
  const std::lock_guard lock(calls().mutex);
  std::function<void()> function = std::move(call->function);
  calls().waiting.erase(call->place);
  return function;
}

// Functions that streams call must not call the driver, but what they refer to may end with them: then it ends later,
// when somebody else comes by.
thread_local bool in_call = false;

struct Leftovers {
  std::mutex mutex;
  std::vector<std::pair<std::shared_ptr<Gpu>, std::byte*>> pinned;
  std::vector<Gpu*> gpus;
};

Leftovers& leftovers() {
  static auto* const all = new Leftovers;
  return *all;
}

void give_up(Gpu* gpu) {
  if (!in_call) {
    delete gpu;
    return;
  }
  const std::lock_guard lock(leftovers().mutex);
  leftovers().gpus.push_back(gpu);
}

void clear_leftovers() {
  std::vector<std::pair<std::shared_ptr<Gpu>, std::byte*>> pinned;
  std::vector<Gpu*> gone;
  {
    const std::lock_guard lock(leftovers().mutex);
    pinned.swap(leftovers().pinned);
    gone.swap(leftovers().gpus);
  }
  for (const auto& [gpu, memory] : pinned) gpu->free_pinned(memory);
  for (Gpu* gpu : gone) delete gpu;
}

Pointer address_of(const std::byte* memory) { return reinterpret_cast<Pointer>(memory); }

}  // namespace

Event::~Event() {
  const std::lock_guard lock(gpu_->mutex_);
  gpu_->free_events_.push_back(raw_);
}

bool Event::reached() const {
  const Gpu::Current current(*gpu_);
  const Result result = gpu_->driver().functions().event_query(raw_);
  if (result == kNotReady) return false;
  gpu_->driver().check(result, "cuEventQuery", gpu_->where());
  return true;
}

void Event::hold(Stream stream) const { hold(stream, *gpu_); }

void Event::hold(Stream stream, const Gpu& of) const {
  const Gpu::Current current(of);
  of.driver().check(of.driver().functions().stream_wait_event(stream, raw_, 0), "cuStreamWaitEvent", of.where());
}

Gpu::Current::Current(const Gpu& gpu) : gpu_(gpu) {
  gpu.driver().check(gpu.driver().functions().ctx_push_current(gpu.context_), "cuCtxPushCurrent", gpu.where());
}

Gpu::Current::~Current() {
  Context popped = nullptr;
  gpu_.driver().functions().ctx_pop_current(&popped);
}

std::shared_ptr<Gpu> Gpu::open(std::shared_ptr<const Driver> driver, int device) {
  clear_leftovers();
  const std::lock_guard lock(gpus().mutex);
  std::weak_ptr<Gpu>& known = gpus().by_index[{driver.get(), device}];
  if (auto gpu = known.lock()) return gpu;
  const int count = driver->device_count();
  if (device < 0 || device >= count) {
    throw Error(ErrorKind::kUsage, "there is no cuda:" + std::to_string(device) + ": this process sees " +
                                       std::to_string(count) + " GPUs (CUDA_VISIBLE_DEVICES says which)");
  }
  auto gpu = std::shared_ptr<Gpu>(new Gpu, give_up);
  gpu->driver_ = std::move(driver);
  gpu->device_ = device;
  gpu->take_context();
  known = gpu;
  return gpu;
}

void Gpu::take_context() {
  const Functions& call = driver_->functions();
  driver_->check(call.device_get(&raw_device_, device_), "cuDeviceGet", where());
  std::array<char, kMostNameBytes> name{};
  driver_->check(call.device_get_name(name.data(), kMostNameBytes, raw_device_), "cuDeviceGetName", where());
  name_ = name.data();
  Uuid uuid{};
  driver_->check(call.device_get_uuid(&uuid, raw_device_), "cuDeviceGetUuid", where());
  uuid_ = to_hex(uuid);
  driver_->check(call.device_primary_ctx_retain(&context_, raw_device_), "cuDevicePrimaryCtxRetain", where());
}

// At the end of the process the driver may be gone before; what it says to that does not matter.
Gpu::~Gpu() {
  if (context_ == nullptr) return;
  const Functions& call = driver_->functions();
  if (call.ctx_push_current(context_) == kSuccess) {
    for (const RawEvent event : free_events_) call.event_destroy(event);
    Context popped = nullptr;
    call.ctx_pop_current(&popped);
  }
  call.device_primary_ctx_release(raw_device_);
}

std::string Gpu::where() const { return "cuda:" + std::to_string(device_); }

RawEvent Gpu::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      const RawEvent event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  RawEvent made = nullptr;
  driver_->check(driver_->functions().event_create(&made, kEventDisableTiming), "cuEventCreate", where());
  return made;
}

SharedEvent Gpu::record(Stream stream) {
  const Current current(*this);
  auto event = std::make_shared<const Event>(shared_from_this(), take_event());
  driver_->check(driver_->functions().event_record(event->raw_, stream), "cuEventRecord", where());
  return event;
}

void Gpu::call_behind(Stream stream, std::function<void()> function) {
  const Current current(*this);
  Call* call = add_call(std::move(function));
  const auto trampoline = [](void* data) {
    in_call = true;
    take_call(static_cast<Call*>(data))();
    in_call = false;
  };
  const Result result = driver_->functions().launch_host_func(stream, trampoline, call);
  if (result != kSuccess) take_call(call);
  driver_->check(result, "cuLaunchHostFunc", where());
}

Stream Gpu::make_stream(bool high) {
  const Current current(*this);
  int least = 0;
  int greatest = 0;
  driver_->check(driver_->functions().ctx_get_stream_priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange",
                 where());
  Stream made = nullptr;
  driver_->check(driver_->functions().stream_create_with_priority(&made, kStreamNonBlocking, high ? greatest : least),
                 "cuStreamCreateWithPriority", where());
  return made;
}

// What is queued there is still done.
void Gpu::destroy_stream(Stream stream) {
  if (driver_->functions().ctx_push_current(context_) != kSuccess) return;
  driver_->functions().stream_destroy(stream);
  Context popped = nullptr;
  driver_->functions().ctx_pop_current(&popped);
}

std::shared_ptr<std::byte[]> Gpu::allocate(size_t bytes, Stream stream) {
  if (bytes == 0) return nullptr;
  const Current current(*this);
  Pointer memory = 0;
  driver_->check(driver_->functions().mem_alloc_async(&memory, bytes, stream), "cuMemAllocAsync",
                 std::to_string(bytes) + " bytes on " + where());
  const auto give_back = [gpu = shared_from_this(), stream](std::byte* given) {
    const Functions& call = gpu->driver_->functions();
    if (call.ctx_push_current(gpu->context_) != kSuccess) return;
    call.mem_free_async(address_of(given), stream);
    Context popped = nullptr;
    call.ctx_pop_current(&popped);
  };
  return {reinterpret_cast<std::byte*>(memory), give_back};
}

void Gpu::copy_to_host(std::byte* to, const std::byte* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(driver_->functions().memcpy_dtoh_async(to, address_of(from), bytes, stream), "cuMemcpyDtoHAsync",
                 where());
}

void Gpu::copy_from_host(std::byte* to, const std::byte* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(driver_->functions().memcpy_htod_async(address_of(to), from, bytes, stream), "cuMemcpyHtoDAsync",
                 where());
}

void Gpu::copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(driver_->functions().memcpy_dtod_async(address_of(to), address_of(from), bytes, stream),
                 "cuMemcpyDtoDAsync", where());
}

void Gpu::fill(std::byte* memory, unsigned char value, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(driver_->functions().memset_d8_async(address_of(memory), value, bytes, stream), "cuMemsetD8Async",
                 where());
}

std::byte* Gpu::allocate_pinned(size_t bytes) {
  clear_leftovers();
  const Current current(*this);
  void* memory = nullptr;
  driver_->check(driver_->functions().mem_host_alloc(&memory, bytes, kHostPortable), "cuMemHostAlloc",
                 std::to_string(bytes) + " bytes for " + where());
  return static_cast<std::byte*>(memory);
}

void Gpu::free_pinned(std::byte* memory) {
  if (in_call) {
    const std::lock_guard lock(leftovers().mutex);
    leftovers().pinned.emplace_back(shared_from_this(), memory);
    return;
  }
  if (driver_->functions().ctx_push_current(context_) != kSuccess) return;
  driver_->functions().mem_free_host(memory);
  Context popped = nullptr;
  driver_->functions().ctx_pop_current(&popped);
}

PinnedPool::PinnedPool(std::shared_ptr<Gpu> gpu, size_t block_bytes, size_t max_blocks)
    : gpu_(std::move(gpu)), block_bytes_(block_bytes), max_blocks_(max_blocks) {}

PinnedPool::~PinnedPool() {
  for (std::byte* block : free_) gpu_->free_pinned(block);
}

std::shared_ptr<std::byte[]> PinnedPool::try_take(bool beyond_limit) {
  const std::lock_guard lock(mutex_);
  const size_t num_used = num_blocks_ - free_.size();
  if (num_used >= max_blocks_ && !beyond_limit) return nullptr;
  std::byte* block = nullptr;
  if (free_.empty()) {
    block = allocate();
  } else {
    block = free_.back();
    free_.pop_back();
  }
  const auto give_back = [pool = shared_from_this()](std::byte* given) {
    const std::lock_guard guard(pool->mutex_);
    pool->free_.push_back(given);
  };
  return {block, give_back};
}

std::byte* PinnedPool::allocate() {
  free_.reserve(num_blocks_ + 1);  // giving back never allocates
  std::byte* made = gpu_->allocate_pinned(block_bytes_);
  ++num_blocks_;
  return made;
}

}  // namespace hvd::device
