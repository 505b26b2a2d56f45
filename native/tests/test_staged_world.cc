#include "tests/test_staged_world.h"

#include <numeric>

#include "testing/check.h"

namespace hvd::testing {
namespace {

constexpr std::byte kUntouched{0xEE};

int64_t total_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Batch with_factors(const Work& work, Batch batch) {
  batch.dtype = work.dtype;
  batch.op = work.op;
  batch.prescale = work.prescale;
  batch.postscale = work.postscale;
  batch.what = "the tensor of the test";
  return batch;
}

std::vector<Values> untouched_outputs(const Work& work, int rank) {
  std::vector<Values> outputs;
  for (const int64_t count : work.output_counts(rank)) {
    outputs.emplace_back(static_cast<size_t>(count) * size_of(work.dtype), kUntouched);
  }
  return outputs;
}

}  // namespace

std::vector<int64_t> Work::input_counts(int rank) const {
  const auto mine = static_cast<size_t>(rank);
  if (kind == OpKind::kAllgather) return {counts.front()[mine]};
  if (kind == OpKind::kReducescatter) return {total_of(counts.front())};
  if (kind == OpKind::kAlltoall) return {total_of(counts[mine])};
  return tensors;
}

std::vector<int64_t> Work::output_counts(int rank) const {
  const auto mine = static_cast<size_t>(rank);
  if (kind == OpKind::kAllgather) return {total_of(counts.front())};
  if (kind == OpKind::kReducescatter) return {counts.front()[mine]};
  if (kind != OpKind::kAlltoall) return tensors;
  int64_t total = 0;
  for (const auto& row : counts) total += row[mine];
  return {total};
}

std::unique_ptr<Execution> Work::start(Backend& backend, Batch batch) const {
  batch.root = root;
  if (kind == OpKind::kAlltoall) {
    batch.splits = counts;
  } else if (!counts.empty()) {
    batch.counts = counts.front();
  }
  return backend.execute(collective_of(kind, adasum ? ReduceOp::kAdasum : op), std::move(batch));
}

std::vector<Values> random_inputs(const Work& work, int rank, uint64_t seed) {
  Random random;
  for (uint64_t i = 0; i < seed * 16 + static_cast<uint64_t>(rank); ++i) random.bits();
  std::vector<Values> inputs;
  for (const int64_t count : work.input_counts(rank)) {
    Values& values = inputs.emplace_back(static_cast<size_t>(count) * size_of(work.dtype));
    with_type(work.dtype, [&]<class T>(T) {
      for (size_t at = 0; at < values.size(); at += sizeof(T)) {
        const T element = random_element<T>(random);
        std::memcpy(values.data() + at, &element, sizeof(T));
      }
    });
  }
  return inputs;
}

std::vector<std::vector<Values>> host_results(int size, const Work& work, uint64_t seed, Wire wire,
                                              bool deterministic) {
  BackendWorld world(size, wire, deterministic);
  std::vector<std::vector<Values>> inputs;
  std::vector<std::vector<Values>> outputs;
  std::vector<BackendWorld::Executions> executions(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(random_inputs(work, rank, seed));
    outputs.push_back(untouched_outputs(work, rank));
    const std::vector<int64_t> given = work.input_counts(rank);
    const std::vector<int64_t> taken = work.output_counts(rank);
    Batch batch = with_factors(work, world.batch_of(rank, work.dtype, 0));
    for (size_t i = 0; i < given.size(); ++i) batch.inputs.push_back({inputs.back()[i].data(), given[i]});
    for (size_t i = 0; i < taken.size(); ++i) batch.outputs.push_back({outputs.back()[i].data(), taken[i]});
    executions[static_cast<size_t>(rank)].push_back(work.start(world.backend(rank), std::move(batch)));
  }
  REQUIRE(world.run(executions));
  return outputs;
}

void Rings::ring() {
  const std::lock_guard lock(mutex_);
  ++count_;
  rung_.notify_all();
}

uint64_t Rings::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool Rings::wait_past(uint64_t seen) const {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  return rung_.wait_until(lock, until, [&] { return count_ > seen; });
}

std::vector<std::vector<Values>> StagedWorld::Started::results() const {
  std::vector<std::vector<Values>> all;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto& arrays = outputs.empty() ? inputs[rank] : outputs[rank];
    std::vector<Values>& mine = all.emplace_back();
    for (const DeviceBytes& array : arrays) mine.push_back(array.values());
  }
  return all;
}

StagedWorld::StagedWorld(const FakeCuda& cuda, const StagedWorldOptions& options)
    : cuda_(cuda), hosts_(std::make_unique<BackendWorld>(options.size, options.wire, options.deterministic)) {
  for (int rank = 0; rank < options.size; ++rank) {
    gpus_.push_back(cuda.gpu(rank % options.num_devices));
    const auto ring = [rings = rings_] { rings->ring(); };
    backends_.push_back(std::make_unique<StagedBackend>(hosts_->backend(rank), options.staged, ring));
  }
}

// Memory of devices has been given back when their default streams have come so far.
StagedWorld::~StagedWorld() {
  backends_.clear();
  for (const auto& gpu : gpus_) {
    const device::Gpu::Current current(*gpu);
    cuda_.synchronize(nullptr);
  }
}

StagedWorld::Started StagedWorld::prepare(const Work& work, uint64_t seed) const {
  Started started;
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<DeviceBytes>& inputs = started.inputs.emplace_back();
    for (const Values& values : random_inputs(work, rank, seed)) inputs.emplace_back(cuda_, gpu(rank), values);
    if (work.in_place) continue;
    std::vector<DeviceBytes>& outputs = started.outputs.emplace_back();
    for (const Values& values : untouched_outputs(work, rank)) outputs.emplace_back(cuda_, gpu(rank), values);
  }
  return started;
}

std::unique_ptr<Execution> StagedWorld::start(const Work& work, const Started& arrays, int rank, uint32_t set) {
  const auto mine = static_cast<size_t>(rank);
  Batch batch = with_factors(work, hosts_->batch_of(rank, work.dtype, 0));
  batch.set = set;
  batch.gpu = gpu(rank);
  for (int member = 0; member < size(); ++member) batch.devices.push_back(gpu(member)->device());
  const std::vector<int64_t> given = work.input_counts(rank);
  const std::vector<int64_t> taken = work.output_counts(rank);
  for (size_t i = 0; i < given.size(); ++i) batch.inputs.push_back({arrays.inputs[mine][i].data(), given[i]});
  const auto& outputs = arrays.outputs.empty() ? arrays.inputs[mine] : arrays.outputs[mine];
  for (size_t i = 0; i < taken.size(); ++i) batch.outputs.push_back({outputs[i].data(), taken[i]});
  if (!arrays.ready.empty() && arrays.ready[mine] != nullptr) batch.ready = {arrays.ready[mine]};
  return work.start(*backends_[mine], std::move(batch));
}

bool StagedWorld::take_turns(std::vector<Executions>& all) {
  bool progressed = false;
  for (size_t rank = 0; rank < all.size(); ++rank) progressed = hosts_->take_turn(rank, all[rank]) || progressed;
  return progressed;
}

bool StagedWorld::run(std::vector<Executions>& all) {
  while (!BackendWorld::all_done(all)) {
    const uint64_t seen = rings_->count();
    if (!take_turns(all) && !rings_->wait_past(seen)) return false;
  }
  return true;
}

std::vector<std::vector<Values>> StagedWorld::execute(const Work& work, uint64_t seed) {
  const Started arrays = prepare(work, seed);
  std::vector<Executions> all(static_cast<size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) all[static_cast<size_t>(rank)].push_back(start(work, arrays, rank));
  REQUIRE(run(all));
  return arrays.results();
}

}  // namespace hvd::testing
