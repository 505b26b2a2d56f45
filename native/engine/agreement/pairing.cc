#include "engine/agreement/pairing.h"

#include <algorithm>

namespace hvd {
namespace {

bool sends(const Pairing::Half& half) { return half.spec.kind == OpKind::kSend; }

bool fit(const Pairing::Half& a, const Pairing::Half& b) {
  if (sends(a) == sends(b)) return false;
  const auto accepts = [](const Pairing::Half& one, const Pairing::Half& other) {
    return one.peer < 0 || one.peer == other.member;
  };
  return accepts(a, b) && accepts(b, a);
}

Response response_to(const Pairing::Half& half) {
  Response response;
  response.names.emplace_back().name = half.spec.name;
  return response;
}

// What differs between what is sent and the memory for it; empty if nothing does.
std::string difference(const RequestSpec& sent, const RequestSpec& received) {
  const TensorSpec& from = sent.tensors.front();
  const TensorSpec& to = received.tensors.front();
  if (from.dtype != to.dtype) return "data types";
  return num_elements(from.shape) == num_elements(to.shape) ? "" : "numbers of elements";
}

std::string line_of(const Pairing::Half& half, const std::vector<std::string>& member_names) {
  return "\n  " + member_names[static_cast<size_t>(half.member)] + " submitted " + half.spec.describe(half.site);
}

}  // namespace

std::optional<Duration> Pairing::add(Half half, const std::vector<std::string>& member_names, TimePoint now) {
  const bool is_send = sends(half);
  const size_t most = is_send ? half.spec.total_bytes() : 0;
  if (half.peer >= static_cast<int>(member_names.size()) || half.peer == half.member || (is_send && half.peer < 0) ||
      half.spec.tag < 0 || (!half.payload.empty() && half.payload.size() != most)) {
    throw Error(ErrorKind::kInternal,
                member_names[static_cast<size_t>(half.member)] + " sent a damaged announcement of " + half.spec.name);
  }
  const Key key{.receiver = is_send ? half.peer : half.member, .tag = half.spec.tag};
  Halves& halves = waiting_[key];
  const auto other = std::find_if(halves.begin(), halves.end(), [&](const Half& each) { return fit(half, each); });
  if (other == halves.end()) {
    if (const std::string* end = hopeless(half)) {
      fail(half, *end);
      if (halves.empty()) waiting_.erase(key);
      return std::nullopt;
    }
    half.waited.first = now;
    halves.push_back(std::move(half));
    return std::nullopt;
  }
  const Half met = std::move(*other);
  halves.erase(other);
  if (halves.empty()) waiting_.erase(key);
  answer(is_send ? half : met, is_send ? met : half, member_names);
  return now - met.waited.first;
}

void Pairing::answer(const Half& send, const Half& receive, const std::vector<std::string>& member_names) {
  Response to_sender = response_to(send);
  Response to_receiver = response_to(receive);
  const std::string differs = difference(send.spec, receive.spec);
  if (!differs.empty()) {
    to_sender.kind = to_receiver.kind = Response::Kind::kError;
    to_sender.error_kind = to_receiver.error_kind = ErrorKind::kMismatch;
    const std::string what = "Mismatched " + differs +
                             ": the receiver needs as many elements as are sent, of the same "
                             "data type." +
                             line_of(send, member_names) + line_of(receive, member_names);
    to_sender.message = send.spec.name + " failed. " + what;
    to_receiver.message = receive.spec.name + " failed. " + what;
  } else {
    const bool is_here = send.payload.size() == send.spec.total_bytes();
    to_sender.kind = to_receiver.kind = is_here ? Response::Kind::kResult : Response::Kind::kExecute;
    to_receiver.payload = send.payload;
    to_sender.priority = to_receiver.priority = std::max(send.priority, receive.priority);
    to_sender.peer = receive.member;
    to_receiver.peer = send.member;
  }
  answers_.push_back({send.member, std::move(to_sender)});
  answers_.push_back({receive.member, std::move(to_receiver)});
}

void Pairing::fail(const std::string& end) {
  for (const auto& [key, halves] : waiting_) {
    for (const Half& half : halves) fail(half, end);
  }
  waiting_.clear();
}

void Pairing::fail(const Half& half, const std::string& end) {
  Response response = response_to(half);
  response.kind = Response::Kind::kError;
  response.error_kind = ErrorKind::kShutDown;
  response.message = half.spec.name + " failed: " + end;
  answers_.push_back({half.member, std::move(response)});
}

void Pairing::leave(int member, const std::string& end, int num_members) {
  left_[member] = end;
  num_members_ = num_members;
  for (auto& [key, halves] : waiting_) {
    std::erase_if(halves, [this](const Half& half) {
      const std::string* why = hopeless(half);
      if (why != nullptr) fail(half, *why);
      return why != nullptr;
    });
  }
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
}

// Why nothing can meet it any more; nullptr if something can.
const std::string* Pairing::hopeless(const Half& half) const {
  if (left_.empty()) return nullptr;
  if (half.peer >= 0) {
    const auto found = left_.find(half.peer);
    return found == left_.end() ? nullptr : &found->second;
  }
  const auto other =
      std::find_if(left_.begin(), left_.end(), [&](const auto& one) { return one.first != half.member; });
  const size_t num_others = left_.size() - left_.count(half.member);
  return other == left_.end() || num_others + 1 < static_cast<size_t>(num_members_) ? nullptr : &other->second;
}

std::vector<Pairing::Half*> Pairing::waiting() {
  std::vector<Half*> found;
  for (auto& [key, halves] : waiting_) {
    for (Half& half : halves) found.push_back(&half);
  }
  return found;
}

std::vector<const Pairing::Half*> Pairing::waiting() const {
  std::vector<const Half*> found;
  for (const auto& [key, halves] : waiting_) {
    for (const Half& half : halves) found.push_back(&half);
  }
  return found;
}

}  // namespace hvd
