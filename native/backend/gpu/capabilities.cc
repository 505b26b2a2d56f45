#include "backend/gpu/capabilities.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"

namespace hvd {
namespace {

constexpr size_t kMostTroubleBytes = 600;
constexpr size_t kMostIdBytes = 256;  // NCCL's has 128

// NCCL counted in another way before 2.9.
std::pair<int, int> major_minor(int version) {
  return version < 10000 ? std::pair(version / 1000, version / 100 % 10)
                         : std::pair(version / 10000, version / 100 % 100);
}

std::string in_words(const GpuCapabilities& capabilities) {
  return std::string(capabilities.is_rccl ? "RCCL " : "NCCL ") + nccl_version_text(capabilities.version);
}

// Which ranks have one GPU: NCCL wants one for each. Hosts do not matter, as containers of one machine look like
// several.
std::optional<std::string> shared_gpu(const std::vector<GpuCapabilities>& all_capabilities,
                                      const std::vector<std::string>& names) {
  std::map<std::string, size_t> first;
  for (size_t member = 0; member < all_capabilities.size(); ++member) {
    const auto [found, added] = first.emplace(all_capabilities[member].gpu, member);
    if (!added) return names[found->second] + " and " + names[member] + " use the same GPU";
  }
  return std::nullopt;
}

// Why the ranks cannot use NCCL together, if so.
std::optional<std::string> obstacle(const std::vector<GpuCapabilities>& all_capabilities,
                                    const std::vector<std::string>& names) {
  for (size_t member = 0; member < all_capabilities.size(); ++member) {
    if (!all_capabilities[member].trouble.empty())
      return names[member] + " cannot use NCCL: " + all_capabilities[member].trouble;
  }
  if (auto shared = shared_gpu(all_capabilities, names)) return shared;
  const GpuCapabilities& first = all_capabilities.front();
  for (size_t member = 1; member < all_capabilities.size(); ++member) {
    const GpuCapabilities& capabilities = all_capabilities[member];
    if (capabilities.is_rccl == first.is_rccl && major_minor(capabilities.version) == major_minor(first.version))
      continue;
    return names[member] + " has " + in_words(capabilities) + ", but " + names.front() + " has " + in_words(first) +
           ", which do not work together";
  }
  return std::nullopt;
}

std::optional<size_t> first_that_wants(GpuOperations operations, const std::vector<GpuCapabilities>& all_capabilities) {
  const auto wants = [&](const GpuCapabilities& capabilities) { return capabilities.operations == operations; };
  const auto found = std::find_if(all_capabilities.begin(), all_capabilities.end(), wants);
  if (found == all_capabilities.end()) return std::nullopt;
  return static_cast<size_t>(found - all_capabilities.begin());
}

// Settings from which ranks choose ways and cut chunks: with different ones they would wait for each other for ever.
std::optional<std::string> difference(const std::vector<GpuCapabilities>& all_capabilities,
                                      const std::vector<std::string>& names) {
  const auto differs = [&](size_t member, const std::string& setting, uint64_t theirs, uint64_t first) {
    return names[member] + " has " + setting + "=" + std::to_string(theirs) + ", but " + names.front() + " has " +
           std::to_string(first) + ": give all ranks the same";
  };
  const GpuCapabilities& first = all_capabilities.front();
  for (size_t member = 1; member < all_capabilities.size(); ++member) {
    const GpuCapabilities& capabilities = all_capabilities[member];
    if (capabilities.chunk_bytes != first.chunk_bytes)
      return differs(member, "HOROVOD_GPU_CHUNK_SIZE", capabilities.chunk_bytes, first.chunk_bytes);
    if (capabilities.deterministic != first.deterministic)
      return differs(member, "HOROVOD_DETERMINISTIC", capabilities.deterministic ? 1 : 0, first.deterministic ? 1 : 0);
  }
  return std::nullopt;
}

}  // namespace

std::string nccl_version_text(int version) {
  const auto [major, minor] = major_minor(version);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

Bytes GpuCapabilities::encode() const {
  WireWriter out;
  out.put(chunk_bytes);
  out.put(static_cast<uint8_t>(operations));
  out.put(static_cast<uint8_t>(deterministic));
  out.put(static_cast<uint8_t>(is_rccl));
  out.put(static_cast<int32_t>(version));
  out.put_string(trouble.substr(0, kMostTroubleBytes));
  out.put_string(gpu.substr(0, kMostIdBytes / 2));
  if (unique_id.size() > kMostIdBytes)
    throw Error(ErrorKind::kInternal, "NCCL's unique id is too long for a capabilities");
  out.put_string(unique_id);
  const Bytes content = out.take();
  if (content.size() > kBytes) throw Error(ErrorKind::kInternal, "what this rank has to say of its GPU is too long");
  Bytes capabilities(kBytes);
  std::copy(content.begin(), content.end(), capabilities.begin());
  return capabilities;
}

GpuCapabilities GpuCapabilities::decode(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  GpuCapabilities capabilities;
  capabilities.chunk_bytes = in.get<uint64_t>();
  const auto operations = in.get<uint8_t>();
  if (operations > static_cast<uint8_t>(GpuOperations::kStaged)) {
    throw Error(ErrorKind::kInternal, "a rank wants an unknown way for tensors on GPUs: it runs another version");
  }
  capabilities.operations = static_cast<GpuOperations>(operations);
  capabilities.deterministic = in.get<uint8_t>() != 0;
  capabilities.is_rccl = in.get<uint8_t>() != 0;
  capabilities.version = in.get<int32_t>();
  capabilities.trouble = in.get_string();
  capabilities.gpu = in.get_string();
  capabilities.unique_id = in.get_string();
  return capabilities;
}

GpuPath choose_gpu_path(const std::vector<GpuCapabilities>& all_capabilities, const std::vector<std::string>& names) {
  if (const auto differs = difference(all_capabilities, names))
    return {.kind = GpuPath::Kind::kRefused, .reason = *differs};
  const std::optional<size_t> wants_staged = first_that_wants(GpuOperations::kStaged, all_capabilities);
  const std::optional<size_t> wants_nccl = first_that_wants(GpuOperations::kNccl, all_capabilities);
  std::optional<std::string> reason;
  if (wants_staged) {
    reason = "the settings of " + names[*wants_staged] + " say so";
  } else {
    reason = obstacle(all_capabilities, names);
  }
  if (!reason) return {.kind = GpuPath::Kind::kNccl};
  if (wants_nccl) {
    return {.kind = GpuPath::Kind::kRefused,
            .reason = "the settings of " + names[*wants_nccl] + " want NCCL, which cannot be used: " + *reason};
  }
  return {.kind = GpuPath::Kind::kStaged, .by_need = !wants_staged, .reason = *reason};
}

}  // namespace hvd
