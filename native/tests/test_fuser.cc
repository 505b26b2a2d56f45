#include <random>

#include "engine/agreement/fuser.h"
#include "testing/check.h"

namespace hvd {
namespace {

using Batches = std::vector<std::vector<size_t>>;

TEST("fuser: nothing gives nothing") { CHECK(fuse({}, 100).empty()); }

TEST("fuser: what fits the threshold travels together") {
  CHECK(fuse({{1, 40}, {1, 40}, {1, 20}}, 100) == (Batches{{0, 1, 2}}));
  CHECK(fuse({{1, 40}, {1, 40}, {1, 21}}, 100) == (Batches{{0, 1}, {2}}));
}

TEST("fuser: one that is larger than the threshold travels alone") {
  CHECK(fuse({{1, 500}, {1, 10}, {1, 10}}, 100) == (Batches{{0}, {1, 2}}));
  CHECK(fuse({{1, 10}, {1, 500}, {1, 10}}, 100) == (Batches{{0}, {1}, {2}}));
}

TEST("fuser: other keys are skipped as long as all fits, and keep their order") {
  CHECK(fuse({{1, 10}, {2, 10}, {1, 10}, {2, 10}}, 100) == (Batches{{0, 2}, {1, 3}}));
  CHECK(fuse({{1, 10}, {2, 95}, {1, 10}}, 100) == (Batches{{0}, {1}, {2}}));
}

TEST("fuser: key 0 never fuses") { CHECK(fuse({{0, 1}, {0, 1}, {1, 1}, {1, 1}}, 100) == (Batches{{0}, {1}, {2, 3}})); }

TEST("fuser: a threshold of 0 fuses nothing") { CHECK(fuse({{1, 0}, {1, 0}, {1, 5}}, 0) == (Batches{{0}, {1}, {2}})); }

TEST("fuser: any candidates end up in one batch each, by rising index, one key and below the threshold") {
  std::mt19937 random(6);
  for (int round = 0; round < 2000; ++round) {
    std::vector<FusionCandidate> candidates(random() % 20);
    for (FusionCandidate& candidate : candidates) candidate = {random() % 4, random() % 60};
    const size_t threshold = random() % 150;
    std::vector<int> seen(candidates.size(), 0);
    size_t last_first = 0;
    for (const auto& batch : fuse(candidates, threshold)) {
      REQUIRE(!batch.empty());
      CHECK(batch.front() >= last_first);
      last_first = batch.front();
      size_t bytes = 0;
      for (size_t i = 0; i < batch.size(); ++i) {
        CHECK(i == 0 || batch[i] > batch[i - 1]);
        CHECK_EQ(candidates[batch[i]].key, candidates[batch[0]].key);
        bytes += candidates[batch[i]].bytes;
        ++seen[batch[i]];
      }
      CHECK(batch.size() == 1 || (bytes <= threshold && candidates[batch[0]].key != 0));
    }
    for (const int times : seen) CHECK_EQ(times, 1);
  }
}

}  // namespace
}  // namespace hvd
