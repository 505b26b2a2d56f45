#include "engine/engine.h"

#include <sched.h>

#include "backend/mpi/mpi_backend.h"
#include "backend/native/native_backend.h"

namespace hvd {
namespace {

// The cores that this process may run on.
int num_cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

JobInfo job_of(const TransportParts& parts, const EngineOptions& options) {
  return {.rank = parts.rank,
          .size = parts.size,
          .num_local = parts.num_local,
          .rank_names = options.rank_names,
          .log = options.log,
          .clock = options.clock};
}

std::vector<bool> remote_ranks(const Transport& transport, const JobInfo& job) {
  std::vector<bool> is_remote;
  for (int peer = 0; peer < job.size; ++peer) is_remote.push_back(peer != job.rank && !transport.is_local(peer));
  return is_remote;
}

std::shared_ptr<NcclFinder> make_nccl_finder(const std::optional<GpuOptions>& gpu) {
  if (!gpu) return nullptr;
  return std::make_shared<NcclFinder>(gpu->nccl_candidates, gpu->operations != GpuOperations::kStaged);
}

std::optional<std::vector<std::string>> driver_candidates_of(const EngineOptions& options) {
  return options.gpu ? std::optional(options.gpu->driver_candidates) : std::nullopt;
}

Backends make_backends(const JobInfo& job, Transport& transport, const EngineOptions& options,
                       const std::shared_ptr<NcclFinder>& nccl_finder) {
  const auto ring = [&transport] { transport.doorbell().ring(); };
  const auto make_native = [&] {
    return std::make_unique<NativeBackend>(transport, options.deterministic, options.plans);
  };
  Backends made;
  made.transfers = make_native();
  if (options.mpi == nullptr) {
    made.cpu = make_native();
  } else {
    made.cpu = std::make_unique<MpiBackend>(options.mpi, ring);
  }
  if (!options.gpu) return made;
  GpuBackend::Surroundings surroundings{.deterministic = options.deterministic,
                                        .name_of_rank = [&job](int rank) { return job.name_of_rank(rank); },
                                        .log = options.log,
                                        .ring = ring};
  auto gpu = std::make_unique<GpuBackend>(make_native(), *options.gpu, nccl_finder, std::move(surroundings));
  made.num_nccl_batches = [backend = gpu.get()] { return backend->num_nccl_batches(); };
  made.gpu = std::move(gpu);
  return made;
}

DriverOptions driver_options_of(const JobInfo& job, const EngineOptions& options) {
  const int num_cores = options.num_cores > 0 ? options.num_cores : num_cores_of_process();
  return {.core = options.core, .core_for_each_rank = job.num_local <= num_cores};
}

MachineOptions machine_options_of(const EngineOptions& options) {
  return {.agreement = {.fusion_threshold = options.fusion_threshold,
                        .cache_capacity = options.cache_capacity,
                        .fuse_groups = options.fuse_groups},
          .watch = {.stall_check_time = options.stall_check_time,
                    .stall_shutdown_time = options.stall_shutdown_time,
                    .deadlock_timeout = options.deadlock_timeout},
          .autotune = options.autotune};
}

// Never a reason to refuse an operation: what cannot be quantized travels as it is.
void choose_quantization(Engine& engine, Operation& operation) {
  SubmitRequest& request = operation.request;
  const bool is_sum = request.reduce_op == ReduceOp::kSum || request.reduce_op == ReduceOp::kAverage;
  const bool fits = request.kind == OpKind::kAllreduce && is_sum && operation.gpu.device == kCpuDevice;
  request.quantization =
      fits ? engine.automatic_quantization(request.process_set, operation.spec.name) : Quantization::kNone;
  operation.spec.quantization = request.quantization;
  if (request.quantization == Quantization::kNone) request.residuals.clear();
}

}  // namespace

Engine::Engine(TransportParts parts, const EngineOptions& options)
    : job_(job_of(parts, options)),
      all_local_(parts.remote_peers.empty()),
      quantizes_(options.mpi == nullptr),
      transport_(std::make_unique<Transport>(std::move(parts))),
      control_(std::make_unique<ControlPlane>(*transport_)),
      nccl_finder_(make_nccl_finder(options.gpu)),
      devices_(driver_candidates_of(options), [finder = nccl_finder_] { finder->find(); }),
      submission_(job_, transport_->doorbell(), counters_),
      automatic_quantization_(job_, transport_->hosts(), options.deterministic, quantizes_, options.plans.costs),
      observer_(
          job_, remote_ranks(*transport_, job_),
          [this](int peer, const Message& message) { control_->send(peer, message); },
          [this] { transport_->doorbell().ring(); }),
      position_(options.stack_dump),
      driver_(driver_options_of(job_, options),
              {job_, *transport_, *control_, submission_, devices_, observer_, position_, counters_},
              make_backends(job_, *transport_, options, nccl_finder_), machine_options_of(options)) {}

Engine::~Engine() { close("its engine was destroyed"); }

EngineStatistics Engine::statistics() const {
  return {counters_.submitted,       counters_.announced_by_id, counters_.batches,     counters_.fused_operations,
          counters_.passes,          counters_.direct_batches,  counters_.gpu_batches, counters_.nccl_batches,
          counters_.tuned_threshold, counters_.waited_ns,       counters_.process_sets};
}

void Engine::submit(const std::shared_ptr<Operation>& operation) {
  Submission::describe(*operation);
  if (abandoned_) {
    throw Error(ErrorKind::kShutDown, operation->spec.name + " was not submitted: this process is a fork of a rank");
  }
  const Quantization asked = operation->spec.quantization;
  if (asked != Quantization::kNone && asked != Quantization::kAuto && !quantizes_) {
    throw Error(ErrorKind::kUnsupported, operation->spec.name + ": " + std::string(name_of(asked)) +
                                             " compression is of Horovod's own transport, but HOROVOD_CPU_OPERATIONS "
                                             "lets MPI move tensors; use fp16 or bf16 there");
  }
  submission_.count(*operation);
  devices_.find(*operation);
  if (asked == Quantization::kAuto) choose_quantization(*this, *operation);
  if (operation->gpu.device != kCpuDevice) {
    submission_.refuse_if_ended(*operation);
    devices_.prepare(*operation);
  }
  submission_.submit(operation);
}

Quantization Engine::automatic_quantization(uint32_t set, const std::string& what) {
  return automatic_quantization_.choose(set, submission_.members_of(set, what));
}

void Engine::wake() {
  if (!abandoned_) submission_.wake();
}

void Engine::leave_process_set(uint32_t set, std::string call_site) {
  if (!abandoned_) submission_.leave(set, std::move(call_site));
}

void Engine::give_up(const std::shared_ptr<Operation>& operation, std::string text) {
  if (!abandoned_) submission_.give_up(operation, std::move(text));
}

void Engine::order(const Operation& operation, int device, device::Stream stream) const {
  devices_.order(operation, device, stream);
}

bool Engine::wait(Operation& operation, Duration timeout) {
  const bool done = wait_once(operation, timeout);
  if (done) return true;
  operation.waited_long.store(true, std::memory_order_relaxed);
  if (operation.waiter.load(std::memory_order_relaxed) == pthread_self()) {
    operation.slow_waiter.store(gettid(), std::memory_order_relaxed);
  }
  return false;
}

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  if (abandoned_) return;
  observer_.start(path, mark_cycles, [this](Operation& done, Duration timeout) { return wait(done, timeout); });
}

void Engine::stop_timeline() {
  if (abandoned_) return;
  observer_.stop([this](Operation& done, Duration timeout) { return wait(done, timeout); });
}

void Engine::start_trace(const std::string& path) {
  if (abandoned_) return;
  observer_.start_trace(path, [this](Operation& done, Duration timeout) { return wait(done, timeout); });
}

bool Engine::stop_trace() {
  return !abandoned_ && observer_.stop_trace([this](Operation& done, Duration timeout) { return wait(done, timeout); });
}

// Takes no lock: a thread of the parent may have held it at the fork, and will never release it here.
void Engine::abandon() {
  if (abandoned_.exchange(true)) return;
  driver_.leave_thread_behind();
  if (transport_ != nullptr) transport_->abandon();
  observer_.abandon();
}

void Engine::close(const std::string& reason) {
  if (abandoned_) return;
  position_.close();
  const std::lock_guard close_lock(close_mutex_);
  if (!driver_.runs()) return;
  observer_.close();
  submission_.close(reason);
  const Locked<Machine> machine = driver_.join();
  if (const auto writer = observer_.take_writer()) writer->close();
  submission_.forget_doorbell();
  machine->release();
  control_.reset();
  transport_.reset();
}

}  // namespace hvd
