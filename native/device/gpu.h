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

  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const { return gpu_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  RawEvent raw_;
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
  // Calls `function` on a thread of the driver when the stream has come here; it must not call the driver.
  void call_behind(Stream stream, std::function<void()> function);
  // Does not wait for other streams, nor for the default one. High: of the greatest priority that the device has.
  [[nodiscard]] Stream make_stream(bool high);
  void destroy_stream(Stream stream);

  // Memory of the device, in the order of a stream.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(size_t bytes, Stream stream);

 private:
  Gpu() = default;
  friend class Event;

  std::shared_ptr<const Driver> driver_;
  int device_ = 0;
  int raw_device_ = 0;
  Context context_ = nullptr;
  std::string name_;
  std::string uuid_;
  std::mutex mutex_;
  std::vector<RawEvent> free_events_;
};

// Host memory that the device copies to and from without waiting; pooled. At most `limit` bytes exist at a time.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  PinnedPool(std::shared_ptr<Gpu> gpu, size_t block_bytes, size_t max_blocks);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();

  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }
  // A block, or nullptr if all are in use; it goes back to the pool when nobody refers to it.
  [[nodiscard]] std::shared_ptr<std::byte[]> try_take();

 private:
  std::shared_ptr<Gpu> gpu_;
  size_t block_bytes_;
  size_t max_blocks_;
  std::mutex mutex_;
  size_t num_blocks_ = 0;
  std::vector<std::byte*> free_;
};

}  // namespace hvd::device
