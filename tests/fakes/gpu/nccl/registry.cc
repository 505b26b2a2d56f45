#include "nccl/registry.h"

#include <unistd.h>

#include <utility>

namespace fake_nccl {
namespace {

constexpr uintptr_t kFirstHandle = 0x20000;

struct Table {
  std::shared_mutex mutex;
  uintptr_t last = kFirstHandle;
  std::map<const void*, SharedCommunicator> communicators;
  int process = getpid();
};

struct AtEnd {
  AtEnd() = default;
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd();
};

// Never destroyed: threads may call while the process ends.
Table& table() {
  static auto* const made = new Table;
  static const AtEnd at_end;
  return *made;
}

AtEnd::~AtEnd() {
  if (getpid() != table().process) return;  // the child of a fork has none of the threads
  std::map<const void*, SharedCommunicator> all;
  {
    const std::lock_guard lock(table().mutex);
    all = std::exchange(table().communicators, {});
  }
  for (const auto& [handle, communicator] : all) communicator->abort();
}

}  // namespace

void* add_communicator(SharedCommunicator communicator) {
  const std::lock_guard lock(table().mutex);
  auto* handle = reinterpret_cast<void*>(table().last += 16);
  table().communicators[handle] = std::move(communicator);
  return handle;
}

SharedCommunicator find_communicator(const char* call, const void* handle) {
  if (fake_cuda::fake_cuda_in_host_function()) {
    note_wrong_use(std::string(call) + " was called by a function of the host that a stream runs");
    throw Failure(kInvalidUsage, "call from a function of the host");
  }
  const std::shared_lock lock(table().mutex);
  const auto found = table().communicators.find(handle);
  if (found != table().communicators.end()) return found->second;
  note_wrong_use(std::string(call) + " was given a communicator that does not exist");
  throw Failure(kInvalidArgument, "no such communicator");
}

void remove_communicator(const void* handle) {
  const std::lock_guard lock(table().mutex);
  table().communicators.erase(handle);
}

int64_t num_communicators() {
  const std::shared_lock lock(table().mutex);
  return static_cast<int64_t>(table().communicators.size());
}

Group& group_of_thread() {
  thread_local Group group;
  return group;
}

void add_to_group(const SharedCommunicator& communicator, Operation operation, void* stream) {
  Group& group = group_of_thread();
  for (Group::Member& member : group.members) {
    if (member.communicator != communicator) continue;
    if (member.stream != stream) throw Failure(kInvalidUsage, "a group uses two streams with one communicator");
    member.operations.push_back(std::move(operation));
    return;
  }
  fake_cuda::StreamPlace place = fake_cuda::fake_cuda_find_stream(stream, communicator->spec().device);
  if (place.device != communicator->spec().device) {
    note_wrong_use("a collective was given a stream that is not of the communicator's device");
    throw Failure(kInvalidUsage, "a stream of another device");
  }
  group.members.push_back({communicator, {std::move(operation)}, stream, std::move(place)});
}

Result end_group(bool is_explicit) {
  const Group group = std::exchange(group_of_thread(), {});
  if (group.error != kSuccess) return group.error;
  Result result = kSuccess;
  const auto meet = [&](Result next) {
    if (result == kSuccess || (result == kInProgress && next != kSuccess)) result = next;
  };
  for (const Group::Member& member : group.members) {
    const Action action = is_explicit ? member.communicator->next_action("group_end") : Action::kNone;
    if (action == Action::kFail) return kSystemError;
    if (action == Action::kHang) member.communicator->hang();
    meet(member.communicator->launch(member.operations, member.place));
  }
  for (const SharedCommunicator& each : group.starting) each->start();
  for (const SharedCommunicator& each : group.starting) {
    meet(each->spec().blocking ? each->wait_until_ready() : kInProgress);
  }
  return result;
}

}  // namespace fake_nccl
