// Messages that a faulty or hostile rank may send: right in their form, anything in their contents.
#pragma once

#include <array>

#include "engine/messages/control.h"
#include "fuzz/input.h"

namespace hvd::fuzz {

// The names that the engine under test submits, and some that it does not.
inline constexpr std::array<const char*, 11> kNames{"reduced", "gathered", "spread", "exchanged", "scattered", "small",
                                                    kJoinName, "nobody's", "sent",   "received",  ""};

inline RequestSpec make_spec(Input& in, const std::string& name) {
  RequestSpec spec;
  spec.name = name;
  spec.kind = static_cast<OpKind>(in.below(kNumOpKinds));
  spec.reduce_op = static_cast<ReduceOp>(in.below(static_cast<size_t>(ReduceOp::kProduct) + 1));
  if (in.flip()) spec.prescale = static_cast<double>(in.number());
  if (in.below(8) == 1) spec.quantization = static_cast<Quantization>(1 + in.below(3));
  spec.root = static_cast<int32_t>(in.number());
  spec.on_gpu = in.below(8) == 1;
  spec.weighted = in.below(8) == 1;
  spec.unnamed = in.below(4) == 1 ? in.below(3) : 0;
  spec.cacheable = in.below(4) != 1;
  spec.by_members = in.below(8) == 1;
  spec.tag = static_cast<int32_t>(in.below(2));
  for (size_t i = in.below(3); i > 0; --i) spec.ranks.push_back(in.number());
  for (size_t i = in.below(3); i > 0; --i) {
    TensorSpec& tensor = spec.tensors.emplace_back();
    tensor.dtype = static_cast<DType>(in.below(kNumDTypes));
    std::vector<int64_t> extents(in.below(3));
    for (int64_t& extent : extents) extent = in.number();
    tensor.shape = extents;
  }
  return spec;
}

// `known`: requests that really are under way; most announcements are variations of them.
inline Announcement make_announcement(Input& in, std::span<const RequestSpec> known) {
  Announcement announcement;
  announcement.full = in.below(4) != 1;
  announcement.id = static_cast<uint32_t>(in.below(6));
  if (!known.empty() && in.below(4) != 1) {
    announcement.spec = known[in.below(known.size())];
    announcement.digest = announcement.spec.digest();
    if (in.below(4) == 1) announcement.spec = make_spec(in, announcement.spec.name);
  } else {
    announcement.spec = make_spec(in, kNames.at(in.below(kNames.size())));
    announcement.digest = announcement.spec.digest();
  }
  if (in.below(8) == 1) announcement.digest = in.take<uint64_t>();
  if (in.below(8) == 1) announcement.site = static_cast<uint32_t>(in.below(3));
  if (in.below(8) == 1) announcement.new_site = "train.py:1";
  if (in.below(4) == 1) announcement.weight = static_cast<double>(in.number());
  if (in.below(4) == 1) announcement.priority = static_cast<int32_t>(in.number());
  if (in.below(4) == 1) announcement.place = in.below(3);
  if (in.below(4) == 1) announcement.device = static_cast<int32_t>(in.number());
  for (size_t i = in.below(4); i > 0; --i) announcement.extents.push_back(in.number());
  if (in.flip()) announcement.payload = in.bytes(64);
  for (size_t i = in.below(8) == 1 ? in.below(7) : 0; i > 0; --i) announcement.expected.push_back(in.number());
  return announcement;
}

inline NameRef make_ref(Input& in, std::span<const RequestSpec> known) {
  NameRef ref;
  ref.by_id = in.below(4) == 1;
  ref.id = static_cast<uint32_t>(in.below(6));
  ref.name = kNames.at(in.below(kNames.size()));
  ref.new_id = static_cast<int64_t>(in.below(8)) - 1;
  ref.total_weight = static_cast<double>(in.number());
  for (size_t i = in.below(4); i > 0; --i) {
    std::vector<int64_t>& rows = ref.extents.emplace_back();
    for (size_t j = in.below(4); j > 0; --j) rows.push_back(in.number());
  }
  if (in.below(4) == 1) {
    ref.spec.push_back(!known.empty() && in.flip() ? known[in.below(known.size())] : make_spec(in, ref.name));
  }
  return ref;
}

inline Response make_response(Input& in, std::span<const RequestSpec> known) {
  Response response;
  response.kind = static_cast<Response::Kind>(in.below(3));
  for (size_t i = in.below(4); i > 0; --i) response.names.push_back(make_ref(in, known));
  response.num_averaged = in.below(4) == 1 ? static_cast<int32_t>(in.number()) : 2;
  response.priority = static_cast<int32_t>(in.below(3));
  if (in.below(4) == 1) response.absent.push_back(static_cast<int32_t>(in.below(3)));
  for (size_t i = in.below(8) == 1 ? in.below(4) : 0; i > 0; --i) {
    response.devices.push_back(static_cast<int32_t>(in.number()));
  }
  response.direct = in.below(8) == 1;
  response.peer = static_cast<int32_t>(in.below(4)) - 1;
  response.payload = in.bytes(128);
  response.error_kind = ErrorKind::kMismatch;
  response.message = "no";
  return response;
}

inline std::vector<Wait> make_waits(Input& in) {
  std::vector<Wait> waits;
  for (size_t i = in.below(4); i > 0; --i) {
    waits.push_back({.set = static_cast<uint32_t>(in.number()), .name = kNames.at(in.below(kNames.size()))});
  }
  return waits;
}

inline PositionReport make_position(Input& in) {
  PositionReport position;
  position.blocked = in.flip();
  position.held = in.flip();
  position.waits = make_waits(in);
  for (Wait& wait : make_waits(in)) {
    Unready& unready = position.unready.emplace_back();
    unready.wait = std::move(wait);
    unready.age = Duration(in.number());
    for (size_t i = in.below(4); i > 0; --i) unready.waiting.push_back(static_cast<int32_t>(in.number()));
    for (size_t i = in.below(4); i > 0; --i) unready.missing.push_back(static_cast<int32_t>(in.number()));
  }
  return position;
}

inline Message make_message(Input& in, std::span<const RequestSpec> known) {
  Message message;
  // The first two kinds are those with most in them.
  const size_t kind = in.below(24);
  message.kind = kind <= static_cast<size_t>(MessageKind::kTimeAnswer) ? static_cast<MessageKind>(kind)
                 : kind % 2 == 0                                       ? MessageKind::kAnnounce
                                                                       : MessageKind::kRespond;
  message.set = in.below(8) == 1 ? static_cast<uint32_t>(in.number()) : 0;
  if (message.kind == MessageKind::kAnnounce) {
    for (size_t i = 1 + in.below(3); i > 0; --i) message.announcements.push_back(make_announcement(in, known));
  } else if (message.kind == MessageKind::kRespond) {
    for (size_t i = 1 + in.below(3); i > 0; --i) message.responses.push_back(make_response(in, known));
  } else if (message.kind == MessageKind::kInquire || message.kind == MessageKind::kGiveUp) {
    message.waits = make_waits(in);
  } else if (message.kind == MessageKind::kPosition) {
    message.position = make_position(in);
  } else {
    message.digest = !known.empty() ? known[in.below(known.size())].digest() : 0;
    message.number = static_cast<uint64_t>(in.number());
    message.peer_time = in.number();
    message.payload = in.bytes(256);
    message.text = "so";
    message.error_kind = ErrorKind::kPeerLost;
  }
  return message;
}

}  // namespace hvd::fuzz
