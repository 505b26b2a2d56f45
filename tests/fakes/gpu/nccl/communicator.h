// A communicator of one rank. Its thread meets the other ranks, puts collectives on streams when the caller has already
// gone on, and says goodbye.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "nccl/injection.h"
#include "nccl/mesh.h"
#define FAKE_CUDA_INSIDE
#include "cuda_control.h"

namespace fake_nccl {

enum class Kind { kEnd, kCard, kAllreduce, kReduce, kBroadcast, kReducescatter, kAllgather, kSend, kRecv };

// Whether it is between two ranks, so that others know nothing of it.
[[nodiscard]] inline bool is_alone(Kind kind) { return kind == Kind::kSend || kind == Kind::kRecv; }

// An operation of ncclRedOpCreatePreMulSum.
struct Premultiplied {
  Dtype dtype = 0;
  std::vector<std::byte> scalar;        // its value,
  const void* device_scalar = nullptr;  // or where it will be
};

struct Operation {
  Kind kind = Kind::kEnd;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  Dtype dtype = 0;
  Op op = 0;
  int root = 0;  // or the peer
  std::optional<Premultiplied> premultiplied;
  uint64_t sequence = 0;
  Action action = Action::kNone;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Spec {
    std::string name;
    int rank = 0;
    int size = 0;
    int device = 0;
    bool blocking = true;
  };

  explicit Communicator(Spec spec);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  [[nodiscard]] const Spec& spec() const { return spec_; }
  // Begins to meet the others; wait_until_ready() of a blocking one returns how that ended.
  void start();
  Result wait_until_ready();

  [[nodiscard]] Result state() const;
  // The same, for a caller: what waits to be asked goes on.
  [[nodiscard]] Result ask_state();
  [[nodiscard]] bool is_usable(const char* call) const { return check(call) == kSuccess; }
  // Why the call may not be made now.
  [[nodiscard]] Result check(const char* call) const;
  [[nodiscard]] Action next_action(const std::string& call);
  void hang();
  void fail(Result code, const std::string& text);

  [[nodiscard]] Op add_operator(Premultiplied made);
  bool remove_operator(Op op);
  [[nodiscard]] std::optional<Premultiplied> operator_of(Op op) const;

  Result launch(std::vector<Operation> operations, const fake_cuda::StreamPlace& place);
  Result finalize();
  Result destroy();
  void abort();
  // Ends what it has on streams, so that it may be shrunk; returns the name of its next offspring.
  std::string prepare_to_shrink(bool ends_operations);

 private:
  void work();
  void run(const std::function<void()>& job);
  void submit(std::function<void()> job);
  void meet();
  void say_goodbye();
  void wait_for_launch(Launch when);
  void enqueue(std::vector<Operation> operations, const fake_cuda::StreamPlace& place);
  void execute(const std::vector<Operation>& operations, const fake_cuda::StreamPlace& place);
  void join();

  Spec spec_;
  Interrupt interrupt_;
  Mesh mesh_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Result state_ = kInProgress;
  bool finalized_ = false;
  bool ended_operations_ = false;
  bool executing_ = false;
  bool closed_ = false;
  bool asked_ = false;  // since the last job was submitted
  int num_outstanding_ = 0;
  int num_launches_ = 0;
  int num_offspring_ = 0;
  std::map<std::string, int> num_calls_;
  uint64_t next_sequence_ = 0;
  Op next_operator_ = kFirstOwn;
  std::map<Op, Premultiplied> operators_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
};

// What NCCL would say last.
void set_last_error(const std::string& text);
[[nodiscard]] std::string last_error();
void note_wrong_use(const std::string& text);

}  // namespace fake_nccl
