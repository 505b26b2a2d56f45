#include "engine/messages/request.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace hvd {
namespace {

// FNV-1a over 64-bit words (http://www.isthe.com/chongo/tech/comp/fnv/), with a final mix.
class Digest {
 public:
  void add(uint64_t word) { state_ = (state_ ^ word) * 0x100000001b3ULL; }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(const std::string& text) {
    add(text.size());
    for (const char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  [[nodiscard]] uint64_t value() const { return (state_ ^ (state_ >> 29)) * 0x9e3779b97f4a7c15ULL; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

// A request without a name or tensors takes at least this on the wire.
constexpr size_t kLeastSpecBytes = 52;
constexpr size_t kLeastRefBytes = 21;

template <typename Enum>
Enum get_enum(WireReader& in, Enum last) {
  const auto value = in.get<uint8_t>();
  if (value > static_cast<uint8_t>(last)) {
    throw Error(ErrorKind::kInternal, "a control message holds an unknown value: the peer runs another version");
  }
  return static_cast<Enum>(value);
}

}  // namespace

uint64_t RequestSpec::digest() const {
  Digest digest;
  digest.add(name);
  digest.add(static_cast<uint64_t>(kind) << 8 | static_cast<uint64_t>(reduce_op));
  digest.add(static_cast<uint64_t>(quantization));
  digest.add(prescale);
  digest.add(postscale);
  digest.add(static_cast<uint64_t>(static_cast<uint32_t>(root)));
  digest.add(static_cast<uint64_t>(static_cast<uint32_t>(tag)) << 1 | static_cast<uint64_t>(by_members));
  digest.add(static_cast<uint64_t>(on_gpu) << 2 | static_cast<uint64_t>(weighted) << 1 |
             static_cast<uint64_t>(divide_by_initial_world_size));
  digest.add(ranks.size());
  for (const int64_t rank : ranks) digest.add(static_cast<uint64_t>(rank));
  digest.add(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    digest.add(static_cast<uint64_t>(tensor.dtype) << 32 | tensor.shape.size());
    for (size_t d = first_dimension_differs() ? 1 : 0; d < tensor.shape.size(); ++d) {
      digest.add(static_cast<uint64_t>(tensor.shape[d]));
    }
  }
  return digest.value();
}

size_t RequestSpec::total_bytes() const {
  size_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    bytes += static_cast<size_t>(num_elements(tensor.shape)) * size_of(tensor.dtype);
  }
  return bytes;
}

std::string RequestSpec::describe(const std::string& call_site) const {
  std::ostringstream text;
  text << name_of(kind);
  if (traits_of(kind).reduces) text << "(" << name_of(reduce_op) << ")";
  if (kind == OpKind::kBroadcast) text << " from root rank " << root;
  if (kind == OpKind::kSend) text << " to rank " << root << " with tag " << tag;
  if (kind == OpKind::kRecv) text << " from " << (root < 0 ? "any rank" : "rank " + std::to_string(root));
  if (kind == OpKind::kRecv) text << " with tag " << tag;
  for (size_t i = 0; i < tensors.size() && i < 4; ++i) {
    text << (i == 0 ? " of " : ", ") << name_of(tensors[i].dtype) << " " << to_string(tensors[i].shape);
  }
  if (tensors.size() > 4) text << ", … (" << tensors.size() << " tensors)";
  if (on_gpu) text << " on a GPU";
  for (size_t i = 0; i < ranks.size() && i < 16; ++i) text << (i == 0 ? " " : ", ") << ranks[i];
  if (ranks.size() > 16) text << ", …";
  if (by_members) text << " by its members";
  if (quantization != Quantization::kNone) text << ", " << name_of(quantization) << " between hosts";
  if (weighted) text << ", weighted";
  if (!divide_by_initial_world_size) text << ", divide_by_initial_world_size=False";
  if (prescale != 1.0) text << ", prescale " << prescale;
  if (postscale != 1.0) text << ", postscale " << postscale;
  if (!call_site.empty()) text << " at " << call_site;
  return text.str();
}

std::span<const int64_t> RequestSpec::askers() const {
  const std::span<const int64_t> listed(ranks);
  return kind == OpKind::kRemoveProcessSet && !listed.empty() ? listed.subspan(1) : listed;
}

void RequestSpec::write(WireWriter& out) const {
  out.put(static_cast<uint8_t>(kind));
  out.put(static_cast<uint8_t>(reduce_op));
  out.put(static_cast<uint8_t>(quantization));
  out.put(static_cast<uint8_t>(cacheable));
  out.put(prescale);
  out.put(postscale);
  out.put(root);
  out.put_string(name);
  out.put(static_cast<uint8_t>(on_gpu));
  out.put(static_cast<uint8_t>(weighted));
  out.put(static_cast<uint8_t>(divide_by_initial_world_size));
  out.put(static_cast<uint8_t>(by_members));
  out.put(tag);
  out.put(unnamed);
  out.put_list(ranks);
  out.put(static_cast<uint32_t>(tensors.size()));
  for (const TensorSpec& tensor : tensors) {
    out.put(static_cast<uint8_t>(tensor.dtype));
    out.put_list(tensor.shape);
  }
}

RequestSpec RequestSpec::read(WireReader& in) {
  RequestSpec spec;
  spec.kind = get_enum(in, kLastOpKind);
  spec.reduce_op = get_enum(in, ReduceOp::kProduct);
  spec.quantization = get_enum(in, kLastQuantization);
  spec.cacheable = in.get<uint8_t>() != 0;
  spec.prescale = in.get<double>();
  spec.postscale = in.get<double>();
  spec.root = in.get<int32_t>();
  spec.name = in.get_string();
  spec.on_gpu = in.get<uint8_t>() != 0;
  spec.weighted = in.get<uint8_t>() != 0;
  spec.divide_by_initial_world_size = in.get<uint8_t>() != 0;
  spec.by_members = in.get<uint8_t>() != 0;
  spec.tag = in.get<int32_t>();
  spec.unnamed = in.get<uint64_t>();
  spec.ranks = in.get_list<int64_t>();
  spec.tensors.resize(in.get_count(5));
  for (TensorSpec& tensor : spec.tensors) {
    tensor.dtype = get_enum(in, DType::kFloat64);
    tensor.shape = in.get_list<int64_t>();
  }
  return spec;
}

void Announcement::write(WireWriter& out) const {
  out.put(static_cast<uint8_t>(full));
  out.put(digest);
  if (full) {
    spec.write(out);
  } else {
    out.put(id);
  }
  out.put(site);
  out.put_string(new_site);
  out.put(weight);
  out.put(priority);
  out.put(device);
  out.put_list(extents);
  out.put_list(expected);
  out.put(place);
  out.put_bytes(payload);
}

Announcement Announcement::read(WireReader& in) {
  Announcement announcement;
  announcement.full = in.get<uint8_t>() != 0;
  announcement.digest = in.get<uint64_t>();
  if (announcement.full) {
    announcement.spec = RequestSpec::read(in);
  } else {
    announcement.id = in.get<uint32_t>();
  }
  announcement.site = in.get<uint32_t>();
  announcement.new_site = in.get_string();
  announcement.weight = in.get<double>();
  announcement.priority = in.get<int32_t>();
  announcement.device = in.get<int32_t>();
  announcement.extents = in.get_list<int64_t>();
  announcement.expected = in.get_list<int64_t>();
  announcement.place = in.get<uint64_t>();
  const auto payload = in.get_bytes();
  announcement.payload.assign(payload.begin(), payload.end());
  return announcement;
}

void NameRef::write(WireWriter& out) const {
  out.put(static_cast<uint8_t>(by_id));
  if (by_id) {
    out.put(id);
  } else {
    out.put_string(name);
    out.put(new_id);
  }
  out.put(static_cast<uint32_t>(extents.size()));
  for (const auto& list : extents) out.put_list(list);
  out.put(total_weight);
  out.put(static_cast<uint32_t>(spec.size()));
  for (const RequestSpec& request : spec) request.write(out);
}

NameRef NameRef::read(WireReader& in) {
  NameRef ref;
  ref.by_id = in.get<uint8_t>() != 0;
  if (ref.by_id) {
    ref.id = in.get<uint32_t>();
  } else {
    ref.name = in.get_string();
    ref.new_id = in.get<int64_t>();
  }
  ref.extents.resize(in.get_count(4));
  for (auto& list : ref.extents) list = in.get_list<int64_t>();
  ref.total_weight = in.get<double>();
  ref.spec.resize(in.get_count(kLeastSpecBytes));
  for (RequestSpec& request : ref.spec) request = RequestSpec::read(in);
  return ref;
}

bool Response::lacks(int set_rank) const { return std::find(absent.begin(), absent.end(), set_rank) != absent.end(); }

void Response::write(WireWriter& out) const {
  out.put(static_cast<uint8_t>(kind));
  out.put(static_cast<uint32_t>(names.size()));
  for (const NameRef& ref : names) ref.write(out);
  out.put(num_averaged);
  out.put(priority);
  out.put_list(absent);
  out.put_list(devices);
  out.put(static_cast<uint8_t>(direct));
  out.put(peer);
  if (kind == Kind::kResult) out.put_bytes(payload);
  if (kind == Kind::kError) {
    out.put(static_cast<uint8_t>(error_kind));
    out.put_string(message);
  }
}

Response Response::read(WireReader& in) {
  Response response;
  response.kind = get_enum(in, Kind::kError);
  response.names.resize(in.get_count(kLeastRefBytes));
  for (NameRef& ref : response.names) ref = NameRef::read(in);
  response.num_averaged = in.get<int32_t>();
  response.priority = in.get<int32_t>();
  response.absent = in.get_list<int32_t>();
  response.devices = in.get_list<int32_t>();
  response.direct = in.get<uint8_t>() != 0;
  response.peer = in.get<int32_t>();
  if (response.kind == Kind::kResult) {
    const auto payload = in.get_bytes();
    response.payload.assign(payload.begin(), payload.end());
  }
  if (response.kind == Kind::kError) {
    response.error_kind = get_enum(in, ErrorKind::kInternal);
    response.message = in.get_string();
  }
  return response;
}

}  // namespace hvd
