// The functions of NCCL: communicators and groups.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "nccl/exported.h"

namespace fake_nccl {
namespace {

constexpr std::string_view kIdPrefix = "hvd-fake-nccl/";

// Null, or one that lacks a field, means a blocking communicator.
bool is_blocking(const Config* config) {
  if (config == nullptr) return true;
  if (config->magic != kConfigMagic || config->size < sizeof(Config)) {
    throw Failure(kInvalidArgument, "ncclConfig_t was not initialized");
  }
  const auto within = [](int value, int least, int most) {
    return value == kUndefined || (value >= least && value <= most);
  };
  const bool right = within(config->blocking, 0, 1) && within(config->cga_cluster_size, 0, 8) &&
                     within(config->min_ctas, 1, 64) && within(config->max_ctas, 1, 64);
  if (!right) throw Failure(kInvalidArgument, "a field of ncclConfig_t is out of range");
  return config->blocking != 0;
}

Result init_rank(const char* call, void** made, Communicator::Spec spec) {
  if (made == nullptr) return kInvalidArgument;
  if (fake_cuda::fake_cuda_in_host_function()) return kInvalidUsage;
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size) throw Failure(kInvalidArgument, "no such rank");
  spec.device = fake_cuda::fake_cuda_current_device();
  if (spec.device < 0) {
    note_wrong_use(std::string(call) + " was called without a context, where NCCL makes one on device 0");
    return kUnhandledCudaError;
  }
  if (action_for("init", 1, spec.rank) == Action::kFail) throw Failure(kSystemError, "the test lets init fail");
  auto communicator = std::make_shared<Communicator>(std::move(spec));
  *made = add_communicator(communicator);
  Group& group = group_of_thread();
  group.starting.push_back(std::move(communicator));
  return group.depth > 0 ? kSuccess : end_group(false);
}

Result init_by_id(const char* call, void** made, int size, const UniqueId& id, int rank, const Config* config) {
  const std::string name(id.internal, strnlen(id.internal, sizeof id.internal));
  if (!name.starts_with(kIdPrefix)) throw Failure(kInvalidArgument, "not a unique id");
  return init_rank(call, made, {name, rank, size, 0, is_blocking(config)});
}

Result shrink(void* handle, const std::vector<int>& excluded, void** made, const Config* config, int flags) {
  const SharedCommunicator parent = find_communicator("ncclCommShrink", handle);
  const bool aborts = (flags & kShrinkAbort) != 0;
  if (!aborts) {
    if (const Result failed = parent->check("ncclCommShrink")) return failed;
  }
  Communicator::Spec spec = parent->spec();
  const auto is_excluded = [&](int rank) { return std::count(excluded.begin(), excluded.end(), rank) > 0; };
  if (is_excluded(spec.rank)) throw Failure(kInvalidArgument, "an excluded rank called ncclCommShrink");
  int rank = 0;
  int size = 0;
  for (int each = 0; each < spec.size; ++each) {
    if (is_excluded(each)) continue;
    rank += each < spec.rank ? 1 : 0;
    ++size;
  }
  const Action action = parent->next_action("shrink");
  if (action == Action::kFail) throw Failure(kSystemError, "the test lets shrink fail");
  if (action == Action::kHang) parent->hang();
  spec.name = parent->prepare_to_shrink(aborts);
  spec.rank = rank;
  spec.size = size;
  if (config != nullptr) spec.blocking = is_blocking(config);
  return init_rank("ncclCommShrink", made, spec);
}

}  // namespace

EXPORTED Result ncclGetVersion(int* version) {
  return guarded("ncclGetVersion", [&] {
    if (version == nullptr) return kInvalidArgument;
    *version = fake_nccl::version();
    return kSuccess;
  });
}

EXPORTED Result ncclGetUniqueId(UniqueId* id) {
  return guarded("ncclGetUniqueId", [&] {
    static std::atomic<int> num_ids{0};
    if (id == nullptr) return kInvalidArgument;
    const Action action = action_for("unique_id", ++num_ids, -1);
    if (action == Action::kFail) throw Failure(kSystemError, "the test lets ncclGetUniqueId fail");
    const std::string name = std::string(kIdPrefix) + std::to_string(getpid()) + "-" + std::to_string(num_ids) + "-" +
                             std::to_string(std::random_device()());
    *id = {};
    std::memcpy(id->internal, name.data(), name.size());
    return kSuccess;
  });
}

EXPORTED Result ncclCommInitRank(void** comm, int size, UniqueId id, int rank) {
  return guarded("ncclCommInitRank", [&] { return init_by_id("ncclCommInitRank", comm, size, id, rank, nullptr); });
}

EXPORTED Result ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, const Config* config) {
  return guarded("ncclCommInitRankConfig",
                 [&] { return init_by_id("ncclCommInitRankConfig", comm, size, id, rank, config); });
}

EXPORTED Result ncclCommFinalize(void* comm) {
  return guarded("ncclCommFinalize", [&] {
    const SharedCommunicator found = find_communicator("ncclCommFinalize", comm);
    if (const Result failed = found->check("ncclCommFinalize")) return failed;
    const Action action = found->next_action("finalize");
    if (action == Action::kFail) throw Failure(kSystemError, "the test lets finalize fail");
    if (action == Action::kHang) found->hang();
    return found->finalize();
  });
}

EXPORTED Result ncclCommDestroy(void* comm) {
  return guarded("ncclCommDestroy", [&] {
    const SharedCommunicator found = find_communicator("ncclCommDestroy", comm);
    if (found->state() == kInProgress) return found->check("ncclCommDestroy");
    const Action action = found->next_action("destroy");
    if (action == Action::kFail) throw Failure(kSystemError, "the test lets destroy fail");
    if (action == Action::kHang) found->hang();
    const Result result = found->destroy();
    remove_communicator(comm);
    return result;
  });
}

EXPORTED Result ncclCommAbort(void* comm) {
  return guarded("ncclCommAbort", [&] {
    const SharedCommunicator found = find_communicator("ncclCommAbort", comm);
    const Action action = found->next_action("abort");
    if (action == Action::kHang) hang([] { return false; });
    found->abort();
    remove_communicator(comm);
    return action == Action::kFail ? kSystemError : kSuccess;
  });
}

EXPORTED Result ncclCommShrink(void* comm, const int* excluded, int num_excluded, void** made, const Config* config,
                               int flags) {
  return guarded("ncclCommShrink", [&] {
    if (excluded == nullptr || num_excluded < 1) return kInvalidArgument;
    return shrink(comm, {excluded, excluded + num_excluded}, made, config, flags);
  });
}

EXPORTED Result ncclCommGetAsyncError(void* comm, Result* error) {
  return guarded("ncclCommGetAsyncError", [&] {
    if (error == nullptr) return kInvalidArgument;
    *error = find_communicator("ncclCommGetAsyncError", comm)->ask_state();
    return kSuccess;
  });
}

EXPORTED const char* ncclGetErrorString(Result code) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return code < 0 || code > kInProgress ? "unknown result code" : kTexts[code];
}

EXPORTED const char* ncclGetLastError(void* /*comm*/) {
  thread_local std::string text;
  text = last_error();
  return text.c_str();
}

EXPORTED Result ncclGroupStart() {
  return guarded("ncclGroupStart", [] {
    ++group_of_thread().depth;
    return kSuccess;
  });
}

EXPORTED Result ncclGroupEnd() {
  count_call("ncclGroupEnd");
  Group& group = group_of_thread();
  if (group.depth == 0) {
    note_wrong_use("ncclGroupEnd was called without ncclGroupStart");
    return kInvalidUsage;
  }
  return --group.depth > 0 ? kSuccess : end_group(true);
}

EXPORTED Result ncclCommCount(void* comm, int* count) {
  return guarded("ncclCommCount", [&] {
    const SharedCommunicator found = find_communicator("ncclCommCount", comm);
    if (const Result failed = found->check("ncclCommCount")) return failed;
    *count = found->spec().size;
    return kSuccess;
  });
}

EXPORTED Result ncclCommUserRank(void* comm, int* rank) {
  return guarded("ncclCommUserRank", [&] {
    const SharedCommunicator found = find_communicator("ncclCommUserRank", comm);
    if (const Result failed = found->check("ncclCommUserRank")) return failed;
    *rank = found->spec().rank;
    return kSuccess;
  });
}

EXPORTED Result ncclCommCuDevice(void* comm, int* device) {
  return guarded("ncclCommCuDevice", [&] {
    const SharedCommunicator found = find_communicator("ncclCommCuDevice", comm);
    if (const Result failed = found->check("ncclCommCuDevice")) return failed;
    *device = found->spec().device;
    return kSuccess;
  });
}

}  // namespace fake_nccl
