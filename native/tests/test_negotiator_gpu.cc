#include "engine/agreement/negotiator.h"
#include "engine/submission/check.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

RequestSpec make_spec(const std::string& name, bool on_gpu = true, int64_t count = 4096) {
  RequestSpec spec;
  spec.name = name;
  spec.tensors = {{DType::kFloat32, {count}}};
  spec.on_gpu = on_gpu;
  return spec;
}

RequestSpec make_join() {
  RequestSpec spec;
  spec.kind = OpKind::kJoin;
  spec.name = kJoinName;
  return spec;
}

struct Members {
  Negotiator negotiator{{"rank 0", "rank 1", "rank 2"}, {}};

  void announce(int member, const RequestSpec& spec, int device) {
    Announcement announcement;
    announcement.spec = spec;
    announcement.digest = spec.digest();
    announcement.device = device;
    CHECK(negotiator.announce(member, std::move(announcement), TimePoint()));
  }
  void announce_all(const RequestSpec& spec, const std::vector<int>& devices) {
    for (int member = 0; member < 3; ++member) announce(member, spec, devices[static_cast<size_t>(member)]);
  }
  std::vector<Response> take() { return negotiator.take_responses({}); }
};

TEST("negotiator gpu: the answer names the device of each member, and only operations of the same devices are fused") {
  Members members;
  members.announce_all(make_spec("a"), {0, 1, 2});
  members.announce_all(make_spec("b"), {0, 1, 3});
  members.announce_all(make_spec("c"), {0, 1, 2});
  members.announce_all(make_spec("d", false), {-1, -1, -1});
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 3);
  CHECK(responses[0].names.size() == 2 && responses[0].names[1].name == "c");
  CHECK(responses[0].devices == std::vector<int32_t>({0, 1, 2}));
  CHECK(responses[1].devices == std::vector<int32_t>({0, 1, 3}));
  CHECK(responses[2].names.at(0).name == "d" && responses[2].devices.empty());
}

TEST("negotiator gpu: small values on a GPU do not travel with the announcement") {
  CHECK(may_travel_with_announcement(make_spec("a", false, 4), 2, true));
  CHECK(!may_travel_with_announcement(make_spec("a", true, 4), 2, true));
}

TEST("negotiator gpu: a mix of CPU and GPU is a mismatch that quotes each rank") {
  Members members;
  members.announce(0, make_spec("a"), 0);
  members.announce(1, make_spec("a", false), -1);
  members.announce(2, make_spec("a"), 0);
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].error_kind == ErrorKind::kMismatch);
  const std::string& text = responses[0].message;
  CHECK(contains(text, "Mismatched kinds of devices for a"));
  CHECK(contains(text, "\n  rank 0, rank 2 sent allreduce(Sum) of float32 [4096] on a GPU"));
  CHECK(contains(text, "\n  rank 1 sent allreduce(Sum) of float32 [4096]"));
}

TEST("negotiator gpu: a rank that has joined takes part with the device that it named") {
  Members members;
  members.announce(1, make_join(), 5);
  members.announce(0, make_spec("a"), 0);
  members.announce(2, make_spec("a"), 2);
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].kind == Response::Kind::kExecute);
  CHECK(responses[0].devices == std::vector<int32_t>({0, 5, 2}));
  CHECK(responses[0].absent == std::vector<int32_t>({1}));
  CHECK(responses[0].names.at(0).spec.at(0).on_gpu);
}

TEST("negotiator gpu: a rank that has joined without a device is named, and CPU operations go on") {
  Members members;
  members.announce(1, make_join(), -1);
  members.announce(0, make_spec("a"), 0);
  members.announce(2, make_spec("a"), 2);
  members.announce(0, make_spec("b", false), -1);
  members.announce(2, make_spec("b", false), -1);
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 2);
  CHECK(responses[0].kind == Response::Kind::kError);
  CHECK(contains(responses[0].message, "a failed: rank 1 has joined without a GPU to take part with."));
  CHECK(responses[1].kind == Response::Kind::kExecute && responses[1].devices.empty());
}

TEST("negotiator gpu: a device that does not fit to the request is damage") {
  for (const bool on_gpu : {false, true}) {
    Members members;
    const auto announce = [&] { members.announce_all(make_spec("a", on_gpu), {0, on_gpu ? -1 : 0, 0}); };
    try {
      announce();
      CHECK(false);
    } catch (const Error& error) {
      CHECK(contains(error.what(), "sent a damaged announcement of a"));
    }
  }
  RequestSpec barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.name = "barrier.noname";
  barrier.on_gpu = true;
  try {
    check_received(barrier, "rank 1");
    CHECK(false);
  } catch (const Error& error) {
    CHECK(contains(error.what(), "moves no data"));
  }
}

TEST("negotiator gpu: requests say that they are on a GPU, and those of the CPU nothing") {
  CHECK_EQ(make_spec("a").describe("train.py:12"), "allreduce(Sum) of float32 [4096] on a GPU at train.py:12");
  CHECK_EQ(make_spec("a", false).describe(""), "allreduce(Sum) of float32 [4096]");
  CHECK(make_spec("a").digest() != make_spec("a", false).digest());
}

}  // namespace
}  // namespace hvd::testing
