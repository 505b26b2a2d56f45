// Every rank gives every other what it needs, and reduces in the order of ranks; simple, and for small worlds.
#include "nccl/collectives.h"

#include <cstring>
#include <deque>

#include "nccl/arithmetic.h"

namespace fake_nccl {
namespace {

using fake_cuda::fake_cuda_resolve;

constexpr int kIllegalAddress = 700;    // CUDA_ERROR_ILLEGAL_ADDRESS
constexpr int kAnyPremultiplied = 100;  // ranks have numbers of their own for these

// What one operation sends, and where what came is found.
class Step {
 public:
  Step(const Communicator::Spec& spec, const Operation& operation)
      : spec_(spec), operation_(operation), bytes_(operation.count * size_of(operation.dtype)) {}

  void give(std::vector<Traffic>& traffic);
  [[nodiscard]] bool sends_alone() const { return operation_.kind == Kind::kSend; }
  // Takes what came of this operation from the front of each peer's messages.
  void take(std::vector<std::deque<Message>>& came, std::deque<std::vector<std::byte>>& own);

 private:
  [[nodiscard]] size_t size() const { return static_cast<size_t>(spec_.size); }
  [[nodiscard]] size_t rank() const { return static_cast<size_t>(spec_.rank); }
  [[nodiscard]] size_t root() const { return static_cast<size_t>(operation_.root); }
  [[nodiscard]] bool is_root() const { return operation_.root == spec_.rank; }
  [[nodiscard]] size_t given_bytes() const;
  [[nodiscard]] size_t result_bytes() const;
  // What goes from one rank to another.
  [[nodiscard]] size_t payload(size_t from, size_t to) const;
  [[nodiscard]] Header header(size_t payload) const;
  void read_input();
  void give_collective(std::vector<Traffic>& traffic);
  void give_alone(std::vector<Traffic>& traffic);
  void write(const std::vector<const std::byte*>& given);

  [[nodiscard]] std::byte* memory_of(const void* address, size_t bytes);

  const Communicator::Spec& spec_;
  const Operation& operation_;
  size_t bytes_;
  std::vector<std::byte> input_;
  std::vector<std::shared_ptr<std::byte>> held_;
};

std::byte* Step::memory_of(const void* address, size_t bytes) {
  auto found = fake_cuda_resolve(address, bytes);
  if (found == nullptr) {
    note_wrong_use("a collective found memory of the device that was not there when the stream came to it");
    fake_cuda::fake_cuda_break_device(spec_.device, kIllegalAddress);
    throw Ended();
  }
  held_.push_back(found);
  return found.get();
}

size_t Step::given_bytes() const {
  switch (operation_.kind) {
    case Kind::kBroadcast:
      return is_root() ? bytes_ : 0;
    case Kind::kReducescatter:
      return bytes_ * size();
    case Kind::kRecv:
      return 0;
    default:
      return bytes_;
  }
}

size_t Step::payload(size_t from, size_t to) const {
  if (operation_.kind == Kind::kReduce) return to == root() ? bytes_ : 0;
  if (operation_.kind == Kind::kBroadcast) return from == root() ? bytes_ : 0;
  return bytes_;
}

Header Step::header(size_t payload) const {
  Header header;
  header.kind = static_cast<int>(operation_.kind == Kind::kRecv ? Kind::kSend : operation_.kind);
  header.dtype = operation_.dtype;
  header.count = operation_.count;
  header.payload = payload;
  if (is_alone(operation_.kind)) return header;
  header.op = operation_.op >= kFirstOwn ? kAnyPremultiplied : operation_.op;
  header.root = operation_.root;
  header.sequence = operation_.sequence;
  return header;
}

void Step::read_input() {
  input_.resize(given_bytes());
  if (!input_.empty()) std::memcpy(input_.data(), memory_of(operation_.send, input_.size()), input_.size());
  if (!operation_.premultiplied) return;
  const Premultiplied& by = *operation_.premultiplied;
  const std::byte* scalar = by.scalar.empty() ? memory_of(by.device_scalar, size_of(by.dtype)) : by.scalar.data();
  multiply(operation_.dtype, scalar, input_.size() / size_of(operation_.dtype), input_.data());
}

void Step::give(std::vector<Traffic>& traffic) {
  read_input();
  if (is_alone(operation_.kind)) return give_alone(traffic);
  give_collective(traffic);
}

void Step::give_alone(std::vector<Traffic>& traffic) {
  if (is_root()) return;  // with itself
  if (operation_.kind == Kind::kSend) return traffic[root()].send(header(bytes_), input_.data());
  traffic[root()].expect(header(bytes_));
}

void Step::give_collective(std::vector<Traffic>& traffic) {
  const bool scatters = operation_.kind == Kind::kReducescatter;
  for (size_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    traffic[peer].send(header(payload(rank(), peer)), input_.data() + (scatters ? peer * bytes_ : 0));
    traffic[peer].expect(header(payload(peer, rank())));
  }
}

void Step::take(std::vector<std::deque<Message>>& came, std::deque<std::vector<std::byte>>& own) {
  if (operation_.kind == Kind::kSend) {
    if (is_root()) own.push_back(input_);
    return;
  }
  std::vector<Message> messages(size());
  const bool receives = operation_.kind == Kind::kRecv;
  for (size_t peer = 0; peer < size(); ++peer) {
    if (peer == rank() || (receives && peer != root())) continue;
    messages[peer] = std::move(came[peer].front());
    came[peer].pop_front();
  }
  if (receives && is_root()) {
    if (own.empty() || own.front().size() != bytes_) {
      throw Failure(kInvalidUsage, "rank " + std::to_string(spec_.rank) + " receives from itself what it has not sent");
    }
    messages[rank()].payload = std::move(own.front());
    own.pop_front();
  }
  std::vector<const std::byte*> given(size());
  for (size_t peer = 0; peer < size(); ++peer) given[peer] = messages[peer].payload.data();
  if (!receives) given[rank()] = input_.data() + (operation_.kind == Kind::kReducescatter ? rank() * bytes_ : 0);
  write(given);
}

size_t Step::result_bytes() const {
  if (operation_.kind == Kind::kReduce && !is_root()) return 0;
  return operation_.kind == Kind::kAllgather ? bytes_ * size() : bytes_;
}

void Step::write(const std::vector<const std::byte*>& given) {
  const size_t bytes = result_bytes();
  if (bytes == 0) return;
  std::byte* result = memory_of(operation_.recv, bytes);
  switch (operation_.kind) {
    case Kind::kAllgather:
      for (size_t peer = 0; peer < size(); ++peer) std::memcpy(result + peer * bytes_, given[peer], bytes_);
      return;
    case Kind::kBroadcast:
    case Kind::kRecv:
      std::memmove(result, given[root()], bytes_);
      return;
    default:
      reduce(operation_.dtype, operation_.op >= kFirstOwn ? kSum : operation_.op, given, operation_.count, result);
  }
}

void obey(const Operation& operation, const std::function<bool()>& ends) {
  if (operation.action == Action::kHang) {
    hang(ends);
    if (ends()) throw Ended();
  }
  if (operation.action == Action::kAsyncError) throw Failure(kRemoteError, "the test lets a collective fail");
}

}  // namespace

void execute_on(Mesh& mesh, const Communicator::Spec& spec, const std::vector<Operation>& operations,
                const std::function<bool()>& ends) {
  std::vector<Traffic> traffic(static_cast<size_t>(spec.size));
  std::deque<Step> steps;
  // As in NCCL, sends and receives of a group come after its collectives.
  for (const bool alone : {false, true}) {
    for (const Operation& operation : operations) {
      if (is_alone(operation.kind) != alone) continue;
      obey(operation, ends);
      steps.emplace_back(spec, operation).give(traffic);
    }
  }
  mesh.exchange(traffic, ends);
  std::vector<std::deque<Message>> came(traffic.size());
  for (size_t peer = 0; peer < traffic.size(); ++peer) {
    for (Message& message : traffic[peer].incoming) came[peer].push_back(std::move(message));
  }
  // A rank may receive from itself before it sends to itself.
  std::deque<std::vector<std::byte>> own;
  for (const bool sends : {true, false}) {
    for (Step& step : steps) {
      if (step.sends_alone() == sends) step.take(came, own);
    }
  }
}

}  // namespace fake_nccl
