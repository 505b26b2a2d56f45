#include "backend/gpu/capabilities.h"
#include "base/error.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

using Kind = GpuPath::Kind;

std::vector<GpuCapabilities> good_cards(size_t count) {
  std::vector<GpuCapabilities> all_capabilities(count);
  for (size_t member = 0; member < count; ++member) {
    all_capabilities[member].version = 22907;
    all_capabilities[member].gpu = "uuid " + std::to_string(member);
  }
  return all_capabilities;
}

const std::vector<std::string> kNames{"rank 0 (a:1)", "rank 1 (a:2)", "rank 2 (b:3)"};

GpuPath choose(const std::vector<GpuCapabilities>& all_capabilities) {
  return choose_gpu_path(all_capabilities, kNames);
}

TEST("gpu capabilities: ranks that can all use NCCL do") {
  CHECK(choose(good_cards(3)).kind == Kind::kNccl);
  CHECK(choose(good_cards(1)).kind == Kind::kNccl);
  std::vector<GpuCapabilities> all_capabilities = good_cards(3);
  all_capabilities[1].version = 22999;  // another patch of the same minor version
  CHECK(choose(all_capabilities).kind == Kind::kNccl);
  all_capabilities[2].operations = GpuOperations::kNccl;
  CHECK(choose(all_capabilities).kind == Kind::kNccl);
}

TEST("gpu capabilities: one rank without NCCL is enough, and is named with its reason") {
  std::vector<GpuCapabilities> all_capabilities = good_cards(3);
  all_capabilities[1].trouble = "libnccl.so.2: cannot open shared object file";
  const GpuPath path = choose(all_capabilities);
  CHECK(path.kind == Kind::kStaged && path.by_need);
  CHECK_EQ(path.reason, "rank 1 (a:2) cannot use NCCL: libnccl.so.2: cannot open shared object file");
}

TEST("gpu capabilities: ranks that share a GPU are named") {
  std::vector<GpuCapabilities> all_capabilities = good_cards(3);
  all_capabilities[2].gpu = all_capabilities[0].gpu;
  CHECK_EQ(choose(all_capabilities).reason, "rank 0 (a:1) and rank 2 (b:3) use the same GPU");
  CHECK(choose(all_capabilities).kind == Kind::kStaged && choose(all_capabilities).by_need);
}

TEST("gpu capabilities: versions of NCCL must have the same minor number, and RCCL is not NCCL") {
  std::vector<GpuCapabilities> all_capabilities = good_cards(2);
  all_capabilities[1].version = 22703;
  CHECK_EQ(choose(all_capabilities).reason,
           "rank 1 (a:2) has NCCL 2.27.3, but rank 0 (a:1) has NCCL 2.29.7, which do not work together");
  all_capabilities[1].version = 22907;
  all_capabilities[1].is_rccl = true;
  CHECK(contains(choose(all_capabilities).reason, "rank 1 (a:2) has RCCL 2.29.7"));
  CHECK_EQ(nccl_version_text(2708), "2.7.8");
}

TEST("gpu capabilities: settings that ranks must share are compared, and who differs is named") {
  std::vector<GpuCapabilities> all_capabilities = good_cards(3);
  for (GpuCapabilities& capabilities : all_capabilities) capabilities.chunk_bytes = 4096;
  CHECK(choose(all_capabilities).kind == Kind::kNccl);
  all_capabilities[2].chunk_bytes = 8192;
  CHECK(choose(all_capabilities).kind == Kind::kRefused);
  CHECK_EQ(choose(all_capabilities).reason,
           "rank 2 (b:3) has HOROVOD_GPU_CHUNK_SIZE=8192, but rank 0 (a:1) has 4096: give all ranks the same");
  all_capabilities[2].chunk_bytes = 4096;
  all_capabilities[1].deterministic = true;
  CHECK(choose(all_capabilities).kind == Kind::kRefused);
  CHECK(contains(choose(all_capabilities).reason, "rank 1 (a:2) has HOROVOD_DETERMINISTIC=1, but rank 0 (a:1) has 0"));
}

TEST("gpu capabilities: settings of one rank count for all, and who insists on NCCL gets an error that says why not") {
  std::vector<GpuCapabilities> all_capabilities = good_cards(3);
  all_capabilities[2].operations = GpuOperations::kStaged;
  GpuPath path = choose(all_capabilities);
  CHECK(path.kind == Kind::kStaged && !path.by_need);
  CHECK_EQ(path.reason, "the settings of rank 2 (b:3) say so");
  all_capabilities[0].operations = GpuOperations::kNccl;
  CHECK(choose(all_capabilities).kind == Kind::kRefused);
  all_capabilities[2].operations = GpuOperations::kAuto;
  all_capabilities[2].trouble = "it is too old";
  path = choose(all_capabilities);
  CHECK(path.kind == Kind::kRefused);
  CHECK_EQ(path.reason,
           "the settings of rank 0 (a:1) want NCCL, which cannot be used: rank 2 (b:3) cannot use NCCL: it is too old");
}

TEST("gpu capabilities: travels in as many bytes as all others, and damage is an error") {
  GpuCapabilities capabilities{.operations = GpuOperations::kNccl, .is_rccl = true, .version = 22907};
  capabilities.trouble = std::string(5000, 'x');
  capabilities.gpu = "00112233445566778899aabbccddeeff";
  capabilities.deterministic = true;
  capabilities.chunk_bytes = size_t{5} << 32;
  capabilities.unique_id = std::string(128, '\0') + "end";
  const Bytes bytes = capabilities.encode();
  CHECK_EQ(bytes.size(), GpuCapabilities::kBytes);
  const GpuCapabilities read = GpuCapabilities::decode(bytes);
  CHECK(read.operations == capabilities.operations && read.is_rccl && read.version == capabilities.version);
  CHECK(read.deterministic && read.chunk_bytes == capabilities.chunk_bytes);
  CHECK(read.gpu == capabilities.gpu && read.unique_id == capabilities.unique_id);
  CHECK(!read.trouble.empty() && capabilities.trouble.starts_with(read.trouble));
  const auto is_refused = [](const Bytes& damaged) {
    try {
      static_cast<void>(GpuCapabilities::decode(damaged));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal;
    }
    return false;
  };
  Bytes unknown = bytes;
  unknown[sizeof(uint64_t)] = std::byte{9};  // behind the size of a chunk
  CHECK(is_refused(unknown));
  CHECK(is_refused(Bytes(bytes.begin(), bytes.begin() + 20)));
}

}  // namespace
}  // namespace hvd::testing
