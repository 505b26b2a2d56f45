#include "testing/fake_mpi.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "base/dtype.h"
#include "reduce/kernels.h"

namespace hvd::testing {
namespace {

using mpi::Count;
using Values = std::vector<std::byte>;

constexpr int kFailed = 16;
constexpr std::chrono::seconds kPatience{30};

struct FakeComm {
  std::vector<int> members;  // ranks of the world
  std::vector<int> num_calls;
  int num_freed = 0;
};

// What the members of a communicator do together.
struct Meeting {
  std::string what;
  std::vector<Values> given;
  size_t num_arrived = 0;
  std::vector<int> keys;
  FakeComm* made = nullptr;
  bool failed = false;
};

struct FakeRequest {
  std::function<bool()> ready;
  std::function<void()> finish;
  int looks_left = 0;
};

thread_local int my_rank = -1;
std::mutex mutex;
FakeMpi::State* world = nullptr;

}  // namespace

struct FakeMpi::State {
  int size = 0;
  int provided = 0;
  int num_initialized = 0;
  bool initialized_elsewhere = false;
  bool frozen = false;
  bool broken = false;
  int num_finalized = 0;
  std::condition_variable changed;
  FakeComm all;
  std::deque<FakeComm> comms;
  std::deque<std::vector<int>> groups;
  std::map<std::tuple<FakeComm*, int>, std::shared_ptr<Meeting>> meetings;
  std::map<std::tuple<FakeComm*, std::vector<int>, int>, std::shared_ptr<Meeting>> creations;
  std::map<std::tuple<FakeComm*, int, int, int>, std::deque<Values>> mail;
  std::deque<std::unique_ptr<FakeRequest>> requests;  // also those that will never be complete
  std::vector<std::string> wrong_uses;
  std::map<std::string, int> num_calls;
};

namespace {

FakeComm* comm_of(mpi::Comm comm) { return comm == mpi::kCommWorld ? &world->all : reinterpret_cast<FakeComm*>(comm); }

int rank_in(const FakeComm& comm) {
  return static_cast<int>(std::find(comm.members.begin(), comm.members.end(), my_rank) - comm.members.begin());
}

DType dtype_of(mpi::Datatype datatype) {
  const std::vector<std::pair<mpi::Datatype, DType>> known{
      {mpi::kFloat, DType::kFloat32}, {mpi::kDouble, DType::kFloat64}, {mpi::kInt8, DType::kInt8},
      {mpi::kUint8, DType::kUInt8},   {mpi::kByte, DType::kUInt8},     {mpi::kInt16, DType::kInt16},
      {mpi::kUint16, DType::kUInt16}, {mpi::kInt32, DType::kInt32},    {mpi::kUint32, DType::kUInt32},
      {mpi::kInt64, DType::kInt64},   {mpi::kUint64, DType::kUInt64}};
  for (const auto& [handle, dtype] : known) {
    if (handle == datatype) return dtype;
  }
  world->wrong_uses.emplace_back("unknown datatype");
  return DType::kUInt8;
}

Values copy(const void* data, size_t bytes) {
  Values values(bytes);
  if (bytes > 0) std::memcpy(values.data(), data, bytes);
  return values;
}

void paste(void* to, const Values& values, size_t offset, size_t bytes) {
  if (bytes > 0) std::memcpy(to, values.data() + offset, bytes);
}

Values reduced(const std::vector<Values>& given, DType dtype, mpi::Op op) {
  Values result = given.front();
  auto count = static_cast<Count>(result.size() / size_of(dtype));
  for (size_t i = 1; i < given.size(); ++i) {
    Values next = given[i];
    const std::vector<const std::byte*> sources{result.data(), next.data()};
    const auto known = [&](ReduceOp its) {
      reduce(dtype, its, result.data(), sources, static_cast<size_t>(count), 1.0);
    };
    if (op == mpi::kSum) {
      known(ReduceOp::kSum);
    } else if (op == mpi::kProd) {
      known(ReduceOp::kProduct);
    } else if (op == mpi::kMin) {
      known(ReduceOp::kMin);
    } else if (op == mpi::kMax) {
      known(ReduceOp::kMax);
    } else {
      mpi::Datatype none = nullptr;
      reinterpret_cast<mpi::UserFunction*>(op)(next.data(), result.data(), &count, &none);
    }
  }
  return result;
}

// The meeting that this rank comes to with its next call on the communicator; with the mutex held.
std::shared_ptr<Meeting> come(FakeComm& comm, const std::string& what, Values given) {
  const int rank = rank_in(comm);
  const int number = comm.num_calls[static_cast<size_t>(rank)]++;
  std::shared_ptr<Meeting>& meeting = world->meetings[{&comm, number}];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>();
    meeting->what = what;
    meeting->given.resize(comm.members.size());
    meeting->keys.resize(comm.members.size());
  } else if (meeting->what != what) {
    world->wrong_uses.push_back(what + " meets " + meeting->what);
    meeting->failed = true;
  }
  ++world->num_calls[what.substr(0, what.find(' '))];
  meeting->given[static_cast<size_t>(rank)] = std::move(given);
  ++meeting->num_arrived;
  world->changed.notify_all();
  return meeting;
}

FakeRequest* make_request() { return world->requests.emplace_back(std::make_unique<FakeRequest>()).get(); }

using Finish = std::function<void(const Meeting&)>;

// How often a rank has to look differs, so that ranks end in any order.
mpi::Request start(mpi::Comm handle, const std::string& what, Values given, Finish finish) {
  FakeComm& comm = *comm_of(handle);
  const auto meeting = come(comm, what, std::move(given));
  FakeRequest* request = make_request();
  request->ready = [meeting] { return meeting->num_arrived == meeting->given.size(); };
  request->finish = [meeting, finish = std::move(finish)] { finish(*meeting); };
  request->looks_left = (rank_in(comm) * 3 + comm.num_calls[static_cast<size_t>(rank_in(comm))]) % 4;
  return reinterpret_cast<mpi::Request>(request);
}

int init_thread(int* /*argc*/, char*** /*argv*/, int /*required*/, int* provided) {
  const std::lock_guard lock(mutex);
  my_rank = world->num_initialized++;
  *provided = world->provided;
  return mpi::kSuccess;
}

int get_flag(bool value, int* flag) {
  *flag = value ? 1 : 0;
  return mpi::kSuccess;
}

int initialized(int* flag) {
  const std::lock_guard lock(mutex);
  if (world->initialized_elsewhere) my_rank = world->num_initialized++;
  return get_flag(world->initialized_elsewhere, flag);
}

int finalized(int* flag) { return get_flag(false, flag); }

int query_thread(int* provided) {
  *provided = world->provided;
  return mpi::kSuccess;
}

int finalize() {
  const std::lock_guard lock(mutex);
  ++world->num_finalized;
  return mpi::kSuccess;
}

int error_string(int /*code*/, char* text, int* length) {
  constexpr std::string_view kText = "the fake broke down";
  std::memcpy(text, kText.data(), kText.size());
  text[kText.size()] = 0;
  *length = static_cast<int>(kText.size());
  return mpi::kSuccess;
}

int comm_rank(mpi::Comm comm, int* rank) {
  const std::lock_guard lock(mutex);
  *rank = rank_in(*comm_of(comm));
  return mpi::kSuccess;
}

int comm_size(mpi::Comm comm, int* size) {
  const std::lock_guard lock(mutex);
  *size = static_cast<int>(comm_of(comm)->members.size());
  return mpi::kSuccess;
}

FakeComm* make_comm(std::vector<int> members) {
  FakeComm& made = world->comms.emplace_back();
  made.num_calls.resize(members.size());
  made.members = std::move(members);
  return &made;
}

int comm_split(mpi::Comm handle, int /*color*/, int key, mpi::Comm* made) {
  std::unique_lock lock(mutex);
  FakeComm& comm = *comm_of(handle);
  const auto meeting = come(comm, "split", {});
  meeting->keys[static_cast<size_t>(rank_in(comm))] = key;
  const auto all_are_there = [&] { return meeting->num_arrived == comm.members.size(); };
  if (!world->changed.wait_for(lock, kPatience, all_are_there)) return kFailed;
  if (meeting->made == nullptr) {
    std::vector<int> places(comm.members.size());
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int>(i);
    std::sort(places.begin(), places.end(), [&](int a, int b) {
      return std::pair(meeting->keys[static_cast<size_t>(a)], a) < std::pair(meeting->keys[static_cast<size_t>(b)], b);
    });
    for (int& place : places) place = comm.members[static_cast<size_t>(place)];
    meeting->made = make_comm(places);
  }
  *made = reinterpret_cast<mpi::Comm>(meeting->made);
  return mpi::kSuccess;
}

int comm_group(mpi::Comm comm, mpi::Group* group) {
  const std::lock_guard lock(mutex);
  *group = reinterpret_cast<mpi::Group>(&world->groups.emplace_back(comm_of(comm)->members));
  return mpi::kSuccess;
}

int group_incl(mpi::Group all, int count, const int* ranks, mpi::Group* made) {
  const std::lock_guard lock(mutex);
  const auto& from = *reinterpret_cast<std::vector<int>*>(all);
  std::vector<int>& group = world->groups.emplace_back();
  for (int i = 0; i < count; ++i) group.push_back(from.at(static_cast<size_t>(ranks[i])));
  *made = reinterpret_cast<mpi::Group>(&group);
  return mpi::kSuccess;
}

int group_free(mpi::Group* group) {
  *group = mpi::kGroupNull;
  return mpi::kSuccess;
}

int comm_create_group(mpi::Comm parent, mpi::Group group, int tag, mpi::Comm* made) {
  std::unique_lock lock(mutex);
  const auto& members = *reinterpret_cast<std::vector<int>*>(group);
  auto& slot = world->creations[{comm_of(parent), members, tag}];
  if (slot == nullptr) {
    slot = std::make_shared<Meeting>();
    slot->made = make_comm(members);
  }
  const std::shared_ptr<Meeting> meeting = slot;
  if (++meeting->num_arrived == members.size()) slot.reset();
  world->changed.notify_all();
  const auto all_are_there = [&] { return meeting->num_arrived == meeting->made->members.size(); };
  if (!world->changed.wait_for(lock, kPatience, all_are_there)) return kFailed;
  *made = reinterpret_cast<mpi::Comm>(meeting->made);
  return mpi::kSuccess;
}

int comm_set_errhandler(mpi::Comm /*comm*/, mpi::Errhandler handler) {
  return handler == mpi::kErrorsReturn ? mpi::kSuccess : kFailed;
}

int comm_free(mpi::Comm* comm) {
  const std::lock_guard lock(mutex);
  ++comm_of(*comm)->num_freed;
  *comm = mpi::kCommNull;
  return mpi::kSuccess;
}

int op_create(mpi::UserFunction* function, int /*commutes*/, mpi::Op* op) {
  *op = reinterpret_cast<mpi::Op>(function);
  return mpi::kSuccess;
}

int testall(int count, mpi::Request* requests, int* flag, mpi::Status* /*statuses*/) {
  const std::lock_guard lock(mutex);
  *flag = 0;
  if (world->broken) return kFailed;
  if (world->frozen) return mpi::kSuccess;
  for (int i = 0; i < count; ++i) {
    auto* request = reinterpret_cast<FakeRequest*>(requests[i]);
    if (request != nullptr && (!request->ready() || --request->looks_left >= 0)) return mpi::kSuccess;
  }
  for (int i = 0; i < count; ++i) {
    auto* request = reinterpret_cast<FakeRequest*>(requests[i]);
    request->finish();
    *request = {};
    requests[i] = mpi::kRequestNull;
  }
  *flag = 1;
  return mpi::kSuccess;
}

int isend(const void* data, Count count, mpi::Datatype datatype, int to, int tag, mpi::Comm handle,
          mpi::Request* request) {
  const std::lock_guard lock(mutex);
  FakeComm* comm = comm_of(handle);
  world->mail[{comm, rank_in(*comm), to, tag}].push_back(
      copy(data, static_cast<size_t>(count) * size_of(dtype_of(datatype))));
  FakeRequest* made = make_request();
  made->ready = [] { return true; };
  made->finish = [] {};
  *request = reinterpret_cast<mpi::Request>(made);
  return mpi::kSuccess;
}

int irecv(void* data, Count count, mpi::Datatype datatype, int from, int tag, mpi::Comm handle, mpi::Request* request) {
  const std::lock_guard lock(mutex);
  FakeComm* comm = comm_of(handle);
  std::deque<Values>& box = world->mail[{comm, from, rank_in(*comm), tag}];
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype_of(datatype));
  const auto finish = [&box, data, bytes] {
    if (box.front().size() != bytes) world->wrong_uses.emplace_back("a message has another size");
    paste(data, box.front(), 0, std::min(bytes, box.front().size()));
    box.pop_front();
  };
  FakeRequest* made = make_request();
  made->ready = [&box] { return !box.empty(); };
  made->finish = finish;
  *request = reinterpret_cast<mpi::Request>(made);
  return mpi::kSuccess;
}

int ibcast(void* data, Count count, mpi::Datatype datatype, int root, mpi::Comm comm, mpi::Request* request) {
  const std::lock_guard lock(mutex);
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype_of(datatype));
  const bool is_root = rank_in(*comm_of(comm)) == root;
  *request = start(comm, "bcast " + std::to_string(bytes) + " from " + std::to_string(root),
                   is_root ? copy(data, bytes) : Values{}, [=](const Meeting& meeting) {
                     if (!is_root) paste(data, meeting.given[static_cast<size_t>(root)], 0, bytes);
                   });
  return mpi::kSuccess;
}

std::string name_of_reduction(const char* what, Count count, mpi::Datatype datatype, mpi::Op op) {
  return std::string(what) + " " + std::to_string(count) + " of " +
         std::to_string(reinterpret_cast<uintptr_t>(datatype)) + " by " +
         std::to_string(reinterpret_cast<uintptr_t>(op));
}

int iallreduce(const void* input, void* output, Count count, mpi::Datatype datatype, mpi::Op op, mpi::Comm comm,
               mpi::Request* request) {
  const std::lock_guard lock(mutex);
  if (input == output) world->wrong_uses.emplace_back("allreduce: input and output are the same");
  const DType dtype = dtype_of(datatype);
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
  *request = start(comm, name_of_reduction("allreduce", count, datatype, op),
                   copy(input == mpi::in_place() ? output : input, bytes),
                   [=](const Meeting& meeting) { paste(output, reduced(meeting.given, dtype, op), 0, bytes); });
  return mpi::kSuccess;
}

int ireduce_scatter(const void* input, void* output, const Count* counts, mpi::Datatype datatype, mpi::Op op,
                    mpi::Comm comm, mpi::Request* request) {
  const std::lock_guard lock(mutex);
  const auto me = static_cast<size_t>(rank_in(*comm_of(comm)));
  const DType dtype = dtype_of(datatype);
  const std::vector<Count> all(counts, counts + comm_of(comm)->members.size());
  Count total = 0;
  Count before = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < me) before += all[i];
    total += all[i];
  }
  *request = start(comm, name_of_reduction("reduce_scatter", total, datatype, op),
                   copy(input, static_cast<size_t>(total) * size_of(dtype)), [=](const Meeting& meeting) {
                     paste(output, reduced(meeting.given, dtype, op), static_cast<size_t>(before) * size_of(dtype),
                           static_cast<size_t>(all[me]) * size_of(dtype));
                   });
  return mpi::kSuccess;
}

// NOLINTNEXTLINE(readability-function-size): as MPI has it
int iallgatherv(const void* input, Count count, mpi::Datatype /*input_type*/, void* output, const Count* counts,
                const mpi::Aint* offsets, mpi::Datatype /*output_type*/, mpi::Comm comm, mpi::Request* request) {
  const std::lock_guard lock(mutex);
  const size_t size = comm_of(comm)->members.size();
  const std::vector<Count> all(counts, counts + size);
  const std::vector<mpi::Aint> places(offsets, offsets + size);
  std::string what = "allgather";
  for (const Count its : all) what += " " + std::to_string(its);
  *request = start(comm, what, copy(input, static_cast<size_t>(count)), [=](const Meeting& meeting) {
    for (size_t i = 0; i < size; ++i) {
      if (meeting.given[i].size() != static_cast<size_t>(all[i])) world->wrong_uses.emplace_back("allgather: a part");
      paste(static_cast<std::byte*>(output) + places[i], meeting.given[i], 0, meeting.given[i].size());
    }
  });
  return mpi::kSuccess;
}

// Each rank gives all that it sends, one part after the other, in the order of ranks; the parts' sizes come first.
// NOLINTNEXTLINE(readability-function-size): as MPI has it
int ialltoallv(const void* input, const Count* input_counts, const mpi::Aint* input_offsets,
               mpi::Datatype /*input_type*/, void* output, const Count* output_counts, const mpi::Aint* output_offsets,
               mpi::Datatype /*output_type*/, mpi::Comm comm, mpi::Request* request) {
  const std::lock_guard lock(mutex);
  const size_t size = comm_of(comm)->members.size();
  const auto me = static_cast<size_t>(rank_in(*comm_of(comm)));
  Values given = copy(input_counts, size * sizeof(Count));
  for (size_t i = 0; i < size; ++i) {
    const Values part =
        copy(static_cast<const std::byte*>(input) + input_offsets[i], static_cast<size_t>(input_counts[i]));
    given.insert(given.end(), part.begin(), part.end());
  }
  const std::vector<Count> all(output_counts, output_counts + size);
  const std::vector<mpi::Aint> places(output_offsets, output_offsets + size);
  *request = start(comm, "alltoall", std::move(given), [=](const Meeting& meeting) {
    for (size_t i = 0; i < size; ++i) {
      std::vector<Count> sizes(size);
      std::memcpy(sizes.data(), meeting.given[i].data(), size * sizeof(Count));
      size_t offset = size * sizeof(Count);
      for (size_t j = 0; j < me; ++j) offset += static_cast<size_t>(sizes[j]);
      if (sizes[me] != all[i]) world->wrong_uses.emplace_back("alltoall: a part has another size");
      paste(static_cast<std::byte*>(output) + places[i], meeting.given[i], offset, static_cast<size_t>(sizes[me]));
    }
  });
  return mpi::kSuccess;
}

}  // namespace

FakeMpi::FakeMpi(int size, int provided) : state_(std::make_unique<State>()) {
  state_->size = size;
  state_->provided = provided;
  for (int rank = 0; rank < size; ++rank) state_->all.members.push_back(rank);
  state_->all.num_calls.resize(static_cast<size_t>(size));
  const std::lock_guard lock(mutex);
  world = state_.get();
}

FakeMpi::~FakeMpi() {
  const std::lock_guard lock(mutex);
  world = nullptr;
}

mpi::Functions FakeMpi::functions() {
  mpi::Functions all;
  all.initialized = initialized;
  all.finalized = finalized;
  all.init_thread = init_thread;
  all.query_thread = query_thread;
  all.finalize = finalize;
  all.error_string = error_string;
  all.comm_rank = comm_rank;
  all.comm_size = comm_size;
  all.comm_split = comm_split;
  all.comm_group = comm_group;
  all.comm_create_group = comm_create_group;
  all.comm_set_errhandler = comm_set_errhandler;
  all.comm_free = comm_free;
  all.group_incl = group_incl;
  all.group_free = group_free;
  all.op_create = op_create;
  all.testall = testall;
  all.isend = isend;
  all.irecv = irecv;
  all.ibcast = ibcast;
  all.iallreduce = iallreduce;
  all.ireduce_scatter = ireduce_scatter;
  all.iallgatherv = iallgatherv;
  all.ialltoallv = ialltoallv;
  return all;
}

void FakeMpi::freeze() {
  const std::lock_guard lock(mutex);
  state_->frozen = true;
}

void FakeMpi::break_down() {
  const std::lock_guard lock(mutex);
  state_->broken = true;
}

void FakeMpi::initialize_elsewhere() {
  const std::lock_guard lock(mutex);
  state_->initialized_elsewhere = true;
}

std::vector<std::string> FakeMpi::wrong_uses() const {
  const std::lock_guard lock(mutex);
  return state_->wrong_uses;
}

int FakeMpi::num_finalized() const {
  const std::lock_guard lock(mutex);
  return state_->num_finalized;
}

int FakeMpi::num_communicators() const {
  const std::lock_guard lock(mutex);
  return static_cast<int>(std::count_if(state_->comms.begin(), state_->comms.end(), [](const FakeComm& comm) {
    return comm.num_freed < static_cast<int>(comm.members.size());
  }));
}

int FakeMpi::num_calls(const std::string& what) const {
  const std::lock_guard lock(mutex);
  const auto found = state_->num_calls.find(what);
  return found == state_->num_calls.end() ? 0 : found->second;
}

}  // namespace hvd::testing
