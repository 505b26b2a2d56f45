#include <algorithm>
#include <numeric>

#include "backend/staged/cut.h"
#include "base/error.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

using staged::Cut;
using staged::part_of;

int64_t whole(int64_t quantum) { return quantum; }

TEST("staged cut: parts cover a block once, in order, and fit") {
  for (const int64_t count : {1, 2, 511, 512, 513, 4096, 100'000, 1'000'003}) {
    for (const int64_t most : {1, 7, 512, 1000, 4096, 1 << 20}) {
      const Cut cut = staged::cut(whole, count, {.least = 512, .most = most});
      int64_t at = 0;
      for (int64_t chunk = 0; chunk < cut.num_chunks; ++chunk) {
        const Range part = part_of(count, cut, chunk);
        CHECK_EQ(part.begin, at);
        CHECK(part.size() > 0 && part.size() <= most);
        at = part.end;
      }
      CHECK_EQ(at, count);
      CHECK_EQ(part_of(count, cut, cut.num_chunks).size(), 0);
    }
  }
}

TEST("staged cut: nothing needs no chunk") { CHECK_EQ(staged::cut(whole, 0, {1, 1024}).num_chunks, 0); }

TEST("staged cut: small batches stay whole, and others are cut so that their parts overlap") {
  const staged::CutLimits limits{.least = 1 << 17, .most = 1 << 20};
  CHECK_EQ(staged::cut(whole, 100, limits).num_chunks, 1);
  CHECK_EQ(staged::cut(whole, 1 << 17, limits).num_chunks, 1);
  CHECK_EQ(staged::cut(whole, 1 << 19, limits).num_chunks, 4);
  CHECK_EQ(staged::cut(whole, 1 << 22, limits).num_chunks, 4);
  CHECK_EQ(staged::cut(whole, 1 << 24, limits).num_chunks, 16);
}

TEST("staged cut: the rank that needs most decides") {
  const std::vector<int64_t> counts{10, 5000, 0};
  const auto footprint = [&](int64_t quantum) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0},
                           [&](int64_t sum, int64_t count) { return sum + std::min(count, quantum); });
  };
  const Cut cut = staged::cut(footprint, 5000, {.least = 1000, .most = 1000});
  CHECK(footprint(cut.quantum) <= 1000);
  CHECK_EQ(cut.quantum, 990 - 990 % 512);
  CHECK_EQ(part_of(10, cut, 1).size(), 0);
}

TEST("staged cut: a chunk that cannot hold an element of each rank is an error") {
  try {
    static_cast<void>(staged::cut([](int64_t quantum) { return 8 * quantum; }, 100, {.least = 1, .most = 7}));
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK(contains(error.what(), "7 elements"));
  }
}

}  // namespace
}  // namespace hvd::testing
