#include "backend/gpu/card.h"
#include "base/error.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

using Kind = GpuPath::Kind;

std::vector<GpuCard> good_cards(size_t count) {
  std::vector<GpuCard> cards(count);
  for (size_t member = 0; member < count; ++member) {
    cards[member].version = 22907;
    cards[member].gpu = "uuid " + std::to_string(member);
  }
  return cards;
}

const std::vector<std::string> kNames{"rank 0 (a:1)", "rank 1 (a:2)", "rank 2 (b:3)"};

GpuPath choose(const std::vector<GpuCard>& cards) { return choose_gpu_path(cards, kNames); }

TEST("gpu card: ranks that can all use NCCL do") {
  CHECK(choose(good_cards(3)).kind == Kind::kNccl);
  CHECK(choose(good_cards(1)).kind == Kind::kNccl);
  std::vector<GpuCard> cards = good_cards(3);
  cards[1].version = 22999;  // another patch of the same minor version
  CHECK(choose(cards).kind == Kind::kNccl);
  cards[2].operations = GpuOperations::kNccl;
  CHECK(choose(cards).kind == Kind::kNccl);
}

TEST("gpu card: one rank without NCCL is enough, and is named with its reason") {
  std::vector<GpuCard> cards = good_cards(3);
  cards[1].trouble = "libnccl.so.2: cannot open shared object file";
  const GpuPath path = choose(cards);
  CHECK(path.kind == Kind::kStaged && path.by_need);
  CHECK_EQ(path.reason, "rank 1 (a:2) cannot use NCCL: libnccl.so.2: cannot open shared object file");
}

TEST("gpu card: ranks that share a GPU are named") {
  std::vector<GpuCard> cards = good_cards(3);
  cards[2].gpu = cards[0].gpu;
  CHECK_EQ(choose(cards).reason, "rank 0 (a:1) and rank 2 (b:3) use the same GPU");
  CHECK(choose(cards).kind == Kind::kStaged && choose(cards).by_need);
}

TEST("gpu card: versions of NCCL must have the same minor number, and RCCL is not NCCL") {
  std::vector<GpuCard> cards = good_cards(2);
  cards[1].version = 22703;
  CHECK_EQ(choose(cards).reason,
           "rank 1 (a:2) has NCCL 2.27.3, but rank 0 (a:1) has NCCL 2.29.7, which do not work together");
  cards[1].version = 22907;
  cards[1].is_rccl = true;
  CHECK(contains(choose(cards).reason, "rank 1 (a:2) has RCCL 2.29.7"));
  CHECK_EQ(nccl_version_text(2708), "2.7.8");
}

TEST("gpu card: settings that ranks must share are compared, and who differs is named") {
  std::vector<GpuCard> cards = good_cards(3);
  for (GpuCard& card : cards) card.chunk_bytes = 4096;
  CHECK(choose(cards).kind == Kind::kNccl);
  cards[2].chunk_bytes = 8192;
  CHECK(choose(cards).kind == Kind::kRefused);
  CHECK_EQ(choose(cards).reason,
           "rank 2 (b:3) has HOROVOD_GPU_CHUNK_SIZE=8192, but rank 0 (a:1) has 4096: give all ranks the same");
  cards[2].chunk_bytes = 4096;
  cards[1].deterministic = true;
  CHECK(choose(cards).kind == Kind::kRefused);
  CHECK(contains(choose(cards).reason, "rank 1 (a:2) has HOROVOD_DETERMINISTIC=1, but rank 0 (a:1) has 0"));
}

TEST("gpu card: settings of one rank count for all, and who insists on NCCL gets an error that says why not") {
  std::vector<GpuCard> cards = good_cards(3);
  cards[2].operations = GpuOperations::kStaged;
  GpuPath path = choose(cards);
  CHECK(path.kind == Kind::kStaged && !path.by_need);
  CHECK_EQ(path.reason, "the settings of rank 2 (b:3) say so");
  cards[0].operations = GpuOperations::kNccl;
  CHECK(choose(cards).kind == Kind::kRefused);
  cards[2].operations = GpuOperations::kAuto;
  cards[2].trouble = "it is too old";
  path = choose(cards);
  CHECK(path.kind == Kind::kRefused);
  CHECK_EQ(path.reason,
           "the settings of rank 0 (a:1) want NCCL, which cannot be used: rank 2 (b:3) cannot use NCCL: it is too old");
}

TEST("gpu card: travels in as many bytes as all others, and damage is an error") {
  GpuCard card{.operations = GpuOperations::kNccl, .is_rccl = true, .version = 22907};
  card.trouble = std::string(5000, 'x');
  card.gpu = "00112233445566778899aabbccddeeff";
  card.deterministic = true;
  card.chunk_bytes = size_t{5} << 32;
  card.unique_id = std::string(128, '\0') + "end";
  const Bytes bytes = card.encode();
  CHECK_EQ(bytes.size(), GpuCard::kBytes);
  const GpuCard read = GpuCard::decode(bytes);
  CHECK(read.operations == card.operations && read.is_rccl && read.version == card.version);
  CHECK(read.deterministic && read.chunk_bytes == card.chunk_bytes);
  CHECK(read.gpu == card.gpu && read.unique_id == card.unique_id);
  CHECK(!read.trouble.empty() && card.trouble.starts_with(read.trouble));
  const auto is_refused = [](const Bytes& damaged) {
    try {
      static_cast<void>(GpuCard::decode(damaged));
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
