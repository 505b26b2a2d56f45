// Contexts, and all that has a handle.
#pragma once

#include <map>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cuda/memory.h"
#include "cuda/stream.h"

namespace fake_cuda {

struct Context {
  explicit Context(Device& its_device) : device(its_device) {}

  Device& device;
  std::atomic<bool> alive{true};
  std::mutex mutex;  // of what is queued where default streams matter
  std::shared_ptr<Stream> default_stream;
  std::vector<std::weak_ptr<Stream>> blocking;
};
using SharedContext = std::shared_ptr<Context>;

// A place in a stream.
struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t place = 0;
};

struct Event {
  explicit Event(SharedContext its_context) : context(std::move(its_context)) {}

  SharedContext context;
  std::mutex mutex;
  Point point;
};

class Driver {
 public:
  [[nodiscard]] static Driver& get();

  [[nodiscard]] int device_count() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] Device* device(int index);
  [[nodiscard]] std::string uuid_of(const Device& device) const;
  [[nodiscard]] Memory& memory() { return memory_; }

  // The primary context.
  Result retain(int index, void** context);
  Result release(int index);
  [[nodiscard]] bool has_context(int index);
  [[nodiscard]] SharedContext context(const void* handle);
  [[nodiscard]] SharedContext primary(int index);
  // Of a stream; null if it was released.
  [[nodiscard]] SharedContext context_of(const Stream& stream);
  [[nodiscard]] void* handle_of(const SharedContext& context);
  [[nodiscard]] int index_of(const Device& device) const;

  void* make_stream(const SharedContext& context, unsigned flags, int priority);
  [[nodiscard]] std::shared_ptr<Stream> stream(const void* handle);
  [[nodiscard]] std::shared_ptr<Stream> default_stream(const SharedContext& context);
  Result destroy_stream(const void* handle);
  // Adds to a stream, behind what default streams make it wait for.
  uint64_t add(const SharedContext& context, const std::shared_ptr<Stream>& stream, Stream::Work work);
  // Work of a stream that waits for a place in another.
  [[nodiscard]] static Stream::Work waits_for(const Point& point, const std::shared_ptr<Stream>& waiter);

  void* make_event(const SharedContext& context);
  [[nodiscard]] std::shared_ptr<Event> event(const void* handle);
  bool destroy_event(const void* handle);

  [[nodiscard]] int64_t alive(const std::string& what);
  // Waits for the threads of streams that were destroyed.
  void reap(std::chrono::milliseconds patience);
  // Ends all threads; at the end of the process.
  void end();

 private:
  struct Primary {
    void* handle = nullptr;
    SharedContext context;
    int retained = 0;
  };

  Driver();
  void* make_handle();
  void dismiss(std::shared_ptr<Stream> stream);
  void drop_all_of(const SharedContext& context);

  Memory memory_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::shared_mutex mutex_;
  uintptr_t last_handle_ = 0;
  std::vector<Primary> primaries_;
  std::map<const void*, std::shared_ptr<Stream>> streams_;
  std::map<const void*, std::shared_ptr<Event>> events_;
  std::mutex leaving_mutex_;
  std::vector<std::shared_ptr<Stream>> leaving_;  // until their threads were joined
  int process_ = 0;
};

[[nodiscard]] inline Memory& memory() { return Driver::get().memory(); }

}  // namespace fake_cuda
