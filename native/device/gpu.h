// A GPU of this process, and what orders work on it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/driver.h"

namespace hvd::device {

class Gpu;

// A point in a stream. Made by Gpu::record, reused when nobody refers to it any more.
class Event {
 public:
  Event(std::shared_ptr<Gpu> gpu, RawEvent raw) : gpu_(std::move(gpu)), raw_(raw) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  // Whether all that was in the stream before it is done. Throws Error (kInternal) if the device has failed.
  [[nodiscard]] bool reached() const;
  // The stream goes on only behind this point. Any stream of any device of this process.
  void hold(Stream stream) const;
  // The same of the default stream (nullptr) of another device: which one that is follows from `of`.
  void hold(Stream stream, const Gpu& of) const;

  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const { return gpu_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  RawEvent raw_;
  friend class Gpu;
};

using SharedEvent = std::shared_ptr<const Event>;

// Retains the primary context, which the framework has made before; a context is never made on a device whose index
// no tensor had. Thread-safe.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // Throws Error (kUsage) if there is no such device.
  [[nodiscard]] static std::shared_ptr<Gpu> open(std::shared_ptr<const Driver> driver, int device);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  // Makes the context current on this thread for as long as it lives.
  class Current {
   public:
    explicit Current(const Gpu& gpu);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    const Gpu& gpu_;
  };

  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] const std::string& name() const { return name_; }  // "NVIDIA H200"
  [[nodiscard]] const std::string& uuid() const { return uuid_; }  // 32 hexadecimal digits
  [[nodiscard]] std::string where() const;                         // "cuda:1"

  // The point behind all that is in the stream now.
  [[nodiscard]] SharedEvent record(Stream stream);
  // Calls `function` on a thread of the driver when the stream has come here; it must not call the driver. What it
  // refers to may end with it. If the device fails it is never called, and stays.
  void call_behind(Stream stream, std::function<void()> function);
  // Does not wait for other streams, nor for the default one. High: of the greatest priority that the device has.
  [[nodiscard]] Stream make_stream(bool high);
  void destroy_stream(Stream stream);

  // Memory of the device, in the order of a stream.
  // nullptr for no bytes. It is freed in the order of `stream`, which must live until then: who uses it on another
  // stream lets `stream` wait for that first.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(size_t bytes, Stream stream);
  // These are queued on the stream; for no bytes nothing is. Host memory must be pinned, or the call waits.
  void copy_to_host(std::byte* to, const std::byte* from, size_t bytes, Stream stream) const;
  void copy_from_host(std::byte* to, const std::byte* from, size_t bytes, Stream stream) const;
  void copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) const;
  void fill(std::byte* memory, unsigned char value, size_t bytes, Stream stream) const;
  // Of the host; PinnedPool keeps them.
  [[nodiscard]] std::byte* allocate_pinned(size_t bytes);
  void free_pinned(std::byte* memory);

 private:
  Gpu() = default;
  friend class Event;

  void take_context();
  [[nodiscard]] RawEvent take_event();

  std::shared_ptr<const Driver> driver_;
  int device_ = 0;
  int raw_device_ = 0;
  Context context_ = nullptr;
  std::string name_;
  std::string uuid_;
  std::mutex mutex_;
  std::vector<RawEvent> free_events_;
};

// Host memory that the device copies to and from without waiting; pooled. Thread-safe; blocks may be given back on a
// thread of the driver.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  PinnedPool(std::shared_ptr<Gpu> gpu, size_t block_bytes, size_t max_blocks);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();

  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }
  // A block, or nullptr if as many are in use as may be; it goes back to the pool when nobody refers to it.
  // `beyond_limit`: never nullptr.
  [[nodiscard]] std::shared_ptr<std::byte[]> try_take(bool beyond_limit = false);

 private:
  [[nodiscard]] std::byte* allocate();

  std::shared_ptr<Gpu> gpu_;
  size_t block_bytes_;
  size_t max_blocks_;
  std::mutex mutex_;
  size_t num_blocks_ = 0;
  std::vector<std::byte*> free_;
};

}  // namespace hvd::device
