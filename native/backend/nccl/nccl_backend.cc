#include "backend/nccl/nccl_backend.h"

#include <map>
#include <utility>

#include "backend/nccl/calls.h"
#include "backend/nccl/messages.h"
#include "backend/nccl/nccl_execution.h"

namespace hvd::nccl {

class NcclBackend::State {
 public:
  State(std::shared_ptr<const Library> library, std::function<void()> ring, NcclOptions options)
      : library_(std::move(library)), options_(options), bell_(std::make_shared<Bell>(std::move(ring))) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    bell_->silence();
    thread_->stop();
  }

  [[nodiscard]] const Library& library() const { return *library_; }
  [[nodiscard]] NcclThread& thread() { return *thread_; }
  [[nodiscard]] bool calls_alone() const { return options_.calls_alone; }

  void add(CommunicatorSpec spec) {
    const std::pair key(spec.set, spec.devices);
    auto made = std::make_shared<Communicator>(library_, std::move(spec), options_, bell_, signal_);
    thread_->add(made);
    communicators_[key] = std::move(made);
  }

  [[nodiscard]] bool has(uint32_t set, const std::vector<int>& devices) const {
    return communicators_.contains({set, devices});
  }

  void remove(uint32_t set) {
    for (auto it = communicators_.begin(); it != communicators_.end();) {
      if (it->first.first != set) {
        ++it;
        continue;
      }
      thread_->retire(it->second);
      it = communicators_.erase(it);
    }
  }

  std::unique_ptr<Execution> execute(Batch batch, Calls calls) {
    const auto found = communicators_.find({batch.set, batch.devices});
    if (found == communicators_.end() || !serves(batch))
      throw Error(ErrorKind::kInternal, batch.what + ": NCCL was given a batch that it was not prepared for");
    std::vector<int> members = batch.members;
    auto task = std::make_shared<Task>(std::move(batch), std::move(calls));
    thread_->submit(found->second, task);
    return std::make_unique<NcclExecution>(thread_, found->second, std::move(task), std::move(members));
  }

 private:
  std::shared_ptr<const Library> library_;
  NcclOptions options_;
  std::shared_ptr<Bell> bell_;
  std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  std::shared_ptr<NcclThread> thread_ = std::make_shared<NcclThread>(signal_);
  std::map<std::pair<uint32_t, std::vector<int>>, std::shared_ptr<Communicator>> communicators_;
};

NcclBackend::NcclBackend(std::shared_ptr<const Library> library, std::function<void()> ring, NcclOptions options)
    : state_(std::make_unique<State>(std::move(library), std::move(ring), options)) {}

NcclBackend::~NcclBackend() = default;

std::string NcclBackend::make_unique_id() const {
  UniqueId id{};
  const Result result = state_->library().functions->get_unique_id(&id);
  check(state_->library(), result, "ncclGetUniqueId", "this rank", "a new communicator", nullptr);
  return {id.bytes, sizeof(id.bytes)};
}

void NcclBackend::add_communicator(CommunicatorSpec spec) { state_->add(std::move(spec)); }

bool NcclBackend::has_communicator(uint32_t set, const std::vector<int>& devices) const {
  return state_->has(set, devices);
}

bool NcclBackend::serves(const Batch& batch) { return nccl::serves(batch); }

void NcclBackend::remove_process_set(uint32_t id) { state_->remove(id); }

void NcclBackend::give_up(const std::string& reason) { state_->thread().give_up(reason); }

std::unique_ptr<Execution> NcclBackend::execute(Collective collective, Batch batch) {
  Calls calls = calls_of(collective, batch, state_->calls_alone());
  return state_->execute(std::move(batch), std::move(calls));
}

}  // namespace hvd::nccl
