// What is said of the collectives in one place, which all layers ask.
#include <set>
#include <string>

#include "base/error.h"
#include "plan/collective.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

OpKind kind_at(int number) { return static_cast<OpKind>(number); }

TEST("collective: every kind has a name of its own, of letters that are a word in the timeline too") {
  std::set<std::string> names;
  for (int number = 0; number < kNumOpKinds; ++number) {
    const std::string name = name_of(kind_at(number));
    CHECK(name != "unknown");
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos);
    names.insert(name);
  }
  CHECK_EQ(names.size(), static_cast<size_t>(kNumOpKinds));
}

TEST("collective: what moves data between all ranks has something to execute, and nothing else has") {
  for (int number = 0; number < kNumOpKinds; ++number) {
    const OpTraits traits = traits_of(kind_at(number));
    bool executes = true;
    try {
      CHECK_EQ(reduces(collective_of(kind_at(number), ReduceOp::kSum)), traits.reduces);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kInternal);
      executes = false;
    }
    CHECK_EQ(executes, traits.moves_data && !traits.is_transfer);
  }
  CHECK(collective_of(OpKind::kAllreduce, ReduceOp::kAdasum) == Collective::kAdasum);
}

TEST("collective: traits imply each other") {
  for (int number = 0; number < kNumOpKinds; ++number) {
    const OpTraits traits = traits_of(kind_at(number));
    const bool moves_only = traits.reduces || traits.by_rows || traits.fills_outputs;
    CHECK(traits.moves_data || !moves_only);
    CHECK(traits.reduces || !traits.sums_only);
    CHECK(traits.by_rows || (!traits.scatters && !traits.rows_may_differ));
    CHECK(!(traits.rows_may_differ && traits.fills_outputs));
  }
}

}  // namespace
}  // namespace hvd::testing
