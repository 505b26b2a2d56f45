#include "backend/gpu/gpu_backend.h"

#include "backend/gpu/agreement.h"
#include "backend/gpu/route.h"

namespace hvd {
namespace {

std::string list_of(const std::vector<int>& devices) {
  std::string text;
  for (size_t i = 0; i < devices.size() && i < 16; ++i) {
    text += (i == 0 ? "cuda:" : ", cuda:") + std::to_string(devices[i]);
  }
  return devices.size() > 16 ? text + ", …" : text;
}

}  // namespace

GpuBackend::GpuBackend(std::unique_ptr<Backend> host, const GpuOptions& options, std::shared_ptr<NcclFinder> finder,
                       Surroundings surroundings)
    : host_(std::move(host)), options_(options), finder_(std::move(finder)), surroundings_(std::move(surroundings)) {}

GpuBackend::~GpuBackend() = default;

nccl::NcclBackend& GpuBackend::nccl() {
  if (nccl_ == nullptr) nccl_ = std::make_unique<nccl::NcclBackend>(finder_->library(), surroundings_.ring);
  return *nccl_;
}

StagedBackend& GpuBackend::staged() {
  if (staged_ == nullptr) {
    staged_ = std::make_unique<StagedBackend>(*host_, options_.staged, surroundings_.ring);
  }
  return *staged_;
}

void GpuBackend::remove_process_set(uint32_t id) {
  std::erase_if(routes_, [id](const auto& entry) { return entry.first.first == id; });
  num_agreements_.erase(id);
  if (nccl_ != nullptr) nccl_->remove_process_set(id);
  if (staged_ != nullptr) staged_->remove_process_set(id);
}

void GpuBackend::give_up(const std::string& reason) {
  if (nccl_ != nullptr) nccl_->give_up(reason);
  if (staged_ != nullptr) staged_->give_up(reason);
}

std::vector<std::string> GpuBackend::names_of(const Batch& batch) const {
  std::vector<std::string> names;
  names.reserve(batch.members.size());
  for (const int member : batch.members) names.push_back(surroundings_.name_of_rank(member));
  return names;
}

// A rank that has no NCCL takes part in the agreement all the same.
GpuCapabilities GpuBackend::make_card(const Batch& batch) {
  GpuCapabilities capabilities{.operations = options_.operations,
                               .deterministic = surroundings_.deterministic,
                               .chunk_bytes = options_.staged.chunk_bytes,
                               .trouble = finder_->trouble(),
                               .gpu = batch.gpu->uuid()};
  if (!capabilities.trouble.empty()) return capabilities;
  const auto library = finder_->library();
  capabilities.is_rccl = library->is_rccl;
  capabilities.version = library->version;
  try {
    nccl::NcclBackend& backend = nccl();
    if (batch.set_rank == 0) capabilities.unique_id = backend.make_unique_id();
  } catch (const Error& error) {
    capabilities.trouble = error.what();
  }
  return capabilities;
}

GpuPath GpuBackend::settle(const Batch& batch, const std::vector<GpuCapabilities>& all_capabilities) {
  const std::vector<std::string> names = names_of(batch);
  GpuPath path = choose_gpu_path(all_capabilities, names);
  announce(batch, path);
  if (path.kind == GpuPath::Kind::kNccl) {
    nccl().add_communicator({.set = batch.set,
                             .devices = batch.devices,
                             .set_rank = batch.set_rank,
                             .gpu = batch.gpu,
                             .unique_id = all_capabilities.front().unique_id,
                             .rank_names = names});
  }
  return path;
}

// One member speaks for all.
void GpuBackend::announce(const Batch& batch, const GpuPath& path) {
  const std::string who =
      "tensors on GPUs of process set " + std::to_string(batch.set) + " (" + list_of(batch.devices) + ")";
  if (path.kind == GpuPath::Kind::kRefused) {
    throw Error(ErrorKind::kUsage, batch.what + ": " + who + " cannot go anywhere: " + path.reason);
  }
  if (batch.set_rank != 0) return;
  if (path.kind == GpuPath::Kind::kNccl) {
    const auto library = finder_->library();
    const bool warns = !library->warning.empty() && !std::exchange(has_warned_, true);
    if (warns) surroundings_.log(LogLevel::kWarning, library->warning);
    surroundings_.log(LogLevel::kInfo, who + " go by " + (library->is_rccl ? "RCCL " : "NCCL ") +
                                           nccl_version_text(library->version) + " (" + library->path + ")");
    return;
  }
  const bool alone = batch.members.size() == 1;
  surroundings_.log(
      path.by_need && !alone ? LogLevel::kWarning : LogLevel::kInfo,
      who + " go through host memory" + (path.by_need ? ", which is slower than NCCL" : "") + ": " + path.reason);
}

std::unique_ptr<Execution> GpuBackend::execute(Collective collective, Batch batch) {
  std::shared_ptr<GpuRoute>& route = routes_[{batch.set, batch.devices}];
  if (route == nullptr) {
    const uint32_t sequence = num_agreements_[batch.set]++;
    route =
        std::make_shared<GpuRoute>(*this, std::make_unique<GpuAgreement>(*host_, batch, sequence, make_card(batch)));
  }
  return std::make_unique<GpuExecution>(route, collective, std::move(batch));
}

bool GpuBackend::goes_by_nccl(GpuPath::Kind kind, Collective collective, const Batch& batch) const {
  if (kind != GpuPath::Kind::kNccl || collective == Collective::kAdasum) return false;
  if (surroundings_.deterministic && reduces(collective)) return false;
  return nccl::NcclBackend::serves(batch);
}

std::unique_ptr<Execution> GpuBackend::begin_on(GpuPath::Kind kind, Collective collective, Batch batch) {
  if (!goes_by_nccl(kind, collective, batch)) return staged().execute(collective, std::move(batch));
  ++num_nccl_batches_;
  return nccl().execute(collective, std::move(batch));
}

}  // namespace hvd
