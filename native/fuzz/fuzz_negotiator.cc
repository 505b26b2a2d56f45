// The coordinator: members announce what they like, in any order, join, and leave.
#include "engine/agreement/negotiator.h"
#include "fuzz/messages.h"

namespace {

constexpr int kMembers = 3;

std::vector<hvd::RequestSpec> usual_requests() {
  std::vector<hvd::RequestSpec> specs(9);
  using hvd::OpKind;
  const OpKind kinds[] = {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast,
                          OpKind::kAlltoall,  OpKind::kJoin,      OpKind::kBarrier,
                          OpKind::kSend,      OpKind::kRecv,      OpKind::kAddProcessSet};
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].kind = kinds[i];
    specs[i].name = kinds[i] == OpKind::kJoin ? hvd::kJoinName : hvd::fuzz::kNames.at(i);
    if (i < 4 || hvd::traits_of(kinds[i]).is_transfer) specs[i].tensors = {{hvd::DType::kFloat32, {2, 3}}};
    specs[i].root = 0;
  }
  specs[1].unnamed = 1;
  specs[2].unnamed = 1;
  specs[6].root = 1;
  specs[7].root = -1;
  specs[8].by_members = true;
  specs[8].ranks = {0, 2};
  for (size_t i = 6; i < specs.size(); ++i) specs[i].cacheable = false;
  return specs;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<hvd::RequestSpec> kUsual = usual_requests();
  hvd::fuzz::Input in(data, size);
  hvd::Negotiator negotiator({"rank 0", "rank 1", "rank 2"}, {.cache_capacity = 2});
  hvd::TimePoint now{};
  try {
    while (!in.empty()) {
      now += std::chrono::seconds(1);
      const int member = static_cast<int>(in.below(kMembers));
      if (in.below(32) == 1) negotiator.member_left("a member wanted to");
      static_cast<void>(negotiator.announce(member, hvd::fuzz::make_announcement(in, kUsual), now));
      if (in.below(4) == 1) {
        const hvd::Room room{.any = in.flip(), .small = in.flip(), .priority = static_cast<int32_t>(in.number())};
        for (const hvd::Response& response : negotiator.take_responses(room)) {
          hvd::WireWriter out;
          response.write(out);
        }
        for (const hvd::Directed& answer : negotiator.take_directed()) {
          hvd::WireWriter out;
          answer.response.write(out);
        }
      }
      if (in.below(8) == 1) {
        static_cast<void>(negotiator.take_stalls(now, std::chrono::seconds(3), hvd::Negotiator::Purpose::kWarning));
      }
    }
  } catch (const hvd::Error&) {
    return 0;
  }
  return 0;
}
