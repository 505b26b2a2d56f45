// A whole engine with operations under way, and peers that say whatever the input tells them: over sockets or through
// shared memory, to a coordinator or to a member. It may fail; it may not touch memory that is not its own.
#include <array>

#include "engine/engine.h"
#include "fuzz/messages.h"

namespace {

using hvd::Bytes;
using hvd::DType;
using hvd::Engine;
using hvd::Operation;
using hvd::OpKind;
using hvd::RequestSpec;
using hvd::fuzz::Input;

constexpr int kSize = 3;

// Operations of each kind, with memory of exactly their lengths.
struct Work {
  std::vector<std::shared_ptr<Operation>> operations;
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<RequestSpec> specs;

  hvd::Buffer buffer(int64_t rows) {
    memory.push_back(std::make_unique<float[]>(static_cast<size_t>(rows) * 2));
    return {reinterpret_cast<std::byte*>(memory.back().get()), DType::kFloat32, {rows, 2}};
  }
  void add(OpKind kind, const std::string& name, int64_t rows, int64_t output_rows) {
    auto operation = std::make_shared<Operation>();
    operation->request.kind = kind;
    operation->request.name = name;
    operation->request.root = 0;
    operation->request.inputs = {buffer(rows)};
    if (output_rows > 0) operation->request.outputs = {buffer(output_rows)};
    operations.push_back(std::move(operation));
  }
};

// From and to a rank that no input drives the engine of.
void add_transfers(Work& work) {
  work.add(OpKind::kSend, "sent", 600, 0);
  work.operations.back()->request.root = 2;
  work.add(OpKind::kRecv, "received", 600, 0);
  hvd::SubmitRequest& request = work.operations.back()->request;
  request.root = -1;
  std::swap(request.inputs, request.outputs);
}

Work make_work(Input& in) {
  Work work;
  work.add(OpKind::kAllreduce, "reduced", 2000, 2000);
  work.add(OpKind::kAllgather, "gathered", 2, 0);
  work.add(OpKind::kBroadcast, "spread", 3, 3);
  work.add(OpKind::kAlltoall, "exchanged", 3, 0);
  work.add(OpKind::kReducescatter, "scattered", 3, 1);
  work.add(OpKind::kAllreduce, "small", 1, 1);
  work.operations.back()->request.reduce_op = in.flip() ? hvd::ReduceOp::kAverage : hvd::ReduceOp::kAdasum;
  if (in.below(4) == 1) {
    add_transfers(work);
  } else if (in.below(4) == 1) {
    auto join = std::make_shared<Operation>();
    join->request.kind = OpKind::kJoin;
    join->request.name = hvd::kJoinName;
    work.operations.push_back(std::move(join));
  }
  return work;
}

// What a peer of the engine under test is: its transport, without an engine.
void act(Input& in, hvd::Transport& peer, hvd::ControlPlane& control, int target, std::span<const RequestSpec> known) {
  if (in.below(4) != 1) {
    control.send(target, hvd::fuzz::make_message(in, known));
    return;
  }
  if (in.below(4) == 1) {  // not even a message
    control.send(target, in.bytes(64));
    return;
  }
  const hvd::FrameKey key{
      .set = 0, .sequence = static_cast<uint32_t>(in.below(4)), .lane = static_cast<uint32_t>(in.below(8))};
  static constexpr std::array<size_t, 8> kLengths{0, 8, 16, 24, 4, 5336, 16000, 1};
  const size_t bytes = kLengths.at(in.below(kLengths.size()));
  hvd::Link& link = peer.data(target, key);
  if (std::byte* room = link.try_reserve(bytes)) {
    std::memset(room, 1, bytes);
    link.commit({key, static_cast<uint32_t>(bytes)});
  }
}

void run(Input& in) {
  const int rank = static_cast<int>(in.below(2));
  const std::vector<int> hosts = in.flip() ? std::vector<int>{0, 0, 0} : std::vector<int>{0, 1, 0};
  std::vector<hvd::TransportParts> parts = hvd::make_socket_transports(kSize, hosts, 1);
  hvd::EngineOptions options;
  options.log = [](hvd::LogLevel, const std::string&) {};
  options.cache_capacity = 2;
  options.stall_check_time = options.deadlock_timeout = std::chrono::microseconds(1);  // asks at once
  Work work = make_work(in);
  Engine engine(std::move(parts[static_cast<size_t>(rank)]), options);
  std::vector<std::unique_ptr<hvd::Transport>> peers;
  std::vector<std::unique_ptr<hvd::ControlPlane>> controls;
  for (int other = 0; other < kSize; ++other) {
    if (other == rank) continue;
    peers.push_back(std::make_unique<hvd::Transport>(std::move(parts[static_cast<size_t>(other)])));
    controls.push_back(std::make_unique<hvd::ControlPlane>(*peers.back()));
  }
  try {
    for (const auto& operation : work.operations) engine.submit(operation);
  } catch (const hvd::Error&) {
    return;  // failed already
  }
  for (const auto& operation : work.operations) work.specs.push_back(operation->spec);
  while (!in.empty()) {
    if (rank != 0 && in.flip()) {  // what only the coordinator may say leads farthest
      hvd::Message answer;
      answer.kind = hvd::MessageKind::kRespond;
      answer.responses = {hvd::fuzz::make_response(in, work.specs)};
      controls.front()->send(rank, answer);
    } else {
      const size_t who = in.below(peers.size());
      act(in, *peers[who], *controls[who], rank, work.specs);
    }
    if (in.below(8) == 1) static_cast<void>(engine.wait(*work.operations.front(), std::chrono::microseconds(100)));
  }
  // Long enough for some turns of the engine, whoever drives it.
  static_cast<void>(engine.wait(*work.operations.front(), std::chrono::microseconds(300)));
  peers.clear();  // their end lets the goodbye of the engine end
  engine.close("the input ends");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  run(in);
  return 0;
}
