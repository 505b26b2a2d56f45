#include "transport/tcp_link.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace hvd {
namespace {

constexpr size_t kMostFrame = size_t{256} << 10;
constexpr size_t kSmallFrame = size_t{4} << 10;  // with header: cheaper to copy than to wait for
constexpr size_t kSendBuffer = sizeof(FrameHeader) + kMostFrame + (size_t{64} << 10);
constexpr size_t kLookahead = size_t{4} << 10;        // behind a payload: small frames come many at a time
constexpr size_t kMostAtOnce = size_t{512} << 10;     // more than a frame, so that each time completes one
constexpr uint64_t kMostWaiting = uint64_t{4} << 20;  // frames that nobody used yet; then the peer has to wait

size_t total_of(std::span<const iovec> parts) {
  size_t total = 0;
  for (const iovec& part : parts) total += part.iov_len;
  return total;
}

}  // namespace

TcpLink::TcpLink(Fd socket, std::shared_ptr<BlockPool> pool)
    : socket_(std::move(socket)),
      pool_(std::move(pool)),
      outgoing_(std::make_unique_for_overwrite<std::byte[]>(kSendBuffer)),
      lookahead_(std::make_unique_for_overwrite<std::byte[]>(kLookahead)),
      most_waiting_(kMostWaiting) {
  const int flags = fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw_errno("cannot make the socket to a peer non-blocking");
  }
}

TcpLink::~TcpLink() = default;

size_t TcpLink::max_frame_bytes() const { return kMostFrame; }

std::byte* TcpLink::try_reserve(size_t bytes) {
  const size_t needed = sizeof(FrameHeader) + bytes;
  if (wants_to_write() && (needed > kSmallFrame || write_end_ + needed > kSendBuffer) && !flush() &&
      needed > kSmallFrame) {
    return nullptr;
  }
  if (!wants_to_write()) write_offset_ = write_end_ = 0;
  if (write_end_ + needed > kSendBuffer && write_offset_ > 0) {
    std::memmove(outgoing_.get(), outgoing_.get() + write_offset_, write_end_ - write_offset_);
    write_end_ -= write_offset_;
    write_offset_ = 0;
  }
  if (write_end_ + needed > kSendBuffer) return nullptr;
  return outgoing_.get() + write_end_ + sizeof(FrameHeader);
}

void TcpLink::commit(const FrameHeader& header) {
  std::memcpy(outgoing_.get() + write_end_, &header, sizeof(header));
  write_end_ += sizeof(header) + header.bytes;
  flush();
}

void TcpLink::commit_from(const FrameHeader& header, std::span<const std::span<const std::byte>> parts) {
  FrameHeader copy = header;
  vectors_.clear();
  vectors_.push_back({&copy, sizeof(copy)});
  for (const auto& part : parts) {
    // sendmsg() only reads, but its iovec serves readers and writers alike.
    auto* begin = const_cast<std::byte*>(part.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    vectors_.push_back({begin, part.size()});
  }
  keep_rest(vectors_, wants_to_write() ? 0 : send_parts(vectors_));
}

// What the socket did not take is copied, so that the caller's memory is free at once. That is less than a frame each
// time when the socket is full, not each frame.
void TcpLink::keep_rest(std::span<iovec> parts, size_t sent) {
  for (const iovec& part : parts) {
    const size_t skipped = std::min(sent, part.iov_len);
    sent -= skipped;
    if (skipped == part.iov_len) continue;
    const size_t rest = part.iov_len - skipped;
    std::memcpy(outgoing_.get() + write_end_, static_cast<const std::byte*>(part.iov_base) + skipped, rest);
    write_end_ += rest;
  }
}

size_t TcpLink::send_parts(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno == EINTR) continue;
    broken_ = true;  // nobody reads it; poll() takes in what the peer sent and sees the end
    return total_of(parts);
  }
}

bool TcpLink::flush() {
  while (wants_to_write()) {
    iovec rest{outgoing_.get() + write_offset_, write_end_ - write_offset_};
    const size_t sent = send_parts({&rest, 1});
    if (sent == 0) return false;
    write_offset_ += sent;
  }
  return true;
}

void TcpLink::expect(const FrameKey& key, std::span<std::byte> place) { expected_.push_back({key, place}); }

void TcpLink::withdraw(const FrameKey& key) {
  std::erase_if(expected_, [&](const Expected& expected) { return expected.key == key; });
  if (has_header_ && partial_.header.key == key && partial_.owned == nullptr) {
    partial_.owned = pool_->take(partial_.header.bytes);
    if (payload_bytes_ > 0) std::memcpy(partial_.owned.get(), place_, payload_bytes_);
    place_ = partial_.owned.get();
  }
  for (Frame& frame : frames_) {
    if (frame.consumed || frame.header.key != key || frame.owned != nullptr) continue;
    consume(frame);
    return;
  }
}

void TcpLink::notice(bool at_end) {
  noticed_ = true;
  at_end_ = at_end_ || at_end;
}

// The part that is behind the payload is at most kLookahead bytes: copying those is cheaper than another call.
size_t TcpLink::receive() {
  if (lookahead_begin_ > 0) {  // at most a part of a header
    std::memmove(lookahead_.get(), lookahead_.get() + lookahead_begin_, lookahead_end_ - lookahead_begin_);
    lookahead_end_ -= lookahead_begin_;
    lookahead_begin_ = 0;
  }
  const size_t missing = has_header_ ? partial_.header.bytes - payload_bytes_ : 0;
  std::array<iovec, 2> parts{{{missing > 0 ? place_ + payload_bytes_ : nullptr, missing},
                              {lookahead_.get() + lookahead_end_, kLookahead - lookahead_end_}}};
  const size_t wanted = missing + parts[1].iov_len;
  while (true) {
    const ssize_t result = readv(socket_.get(), parts.data(), static_cast<int>(parts.size()));
    if (result < 0 && errno == EINTR) continue;
    if (result == 0 || (result < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) ended_ = true;
    const size_t got = result > 0 ? static_cast<size_t>(result) : 0;
    // A stream gives all it has: it reports again when more has come, but its end only once.
    if (got < wanted && relies_on_notice_ && !at_end_) noticed_ = false;
    const size_t of_payload = std::min(got, missing);
    payload_bytes_ += of_payload;
    lookahead_end_ += got - of_payload;
    return got;
  }
}

void TcpLink::parse() {
  while (true) {
    if (!has_header_) {
      if (lookahead_end_ - lookahead_begin_ < sizeof(FrameHeader)) return;
      start_payload();
    }
    take_from_lookahead();
    if (payload_bytes_ < partial_.header.bytes) return;
    end_payload();
  }
}

void TcpLink::start_payload() {
  std::memcpy(&partial_.header, lookahead_.get() + lookahead_begin_, sizeof(FrameHeader));
  lookahead_begin_ += sizeof(FrameHeader);
  const size_t bytes = partial_.header.bytes;
  if (bytes > kMostFrame) {
    ended_ = true;  // where the next frame starts cannot be known
    throw Error(ErrorKind::kInternal, "a frame of a peer is longer than frames may be");
  }
  has_header_ = true;
  payload_bytes_ = 0;
  const auto found = std::find_if(expected_.begin(), expected_.end(), [&](const Expected& expected) {
    return expected.key == partial_.header.key && expected.place.size() == bytes;
  });
  if (found == expected_.end()) {
    partial_.owned = pool_->take(bytes);
    place_ = partial_.owned.get();
  } else {
    place_ = found->place.data();
    expected_.erase(found);
  }
}

void TcpLink::take_from_lookahead() {
  const size_t there = lookahead_end_ - lookahead_begin_;
  const size_t taken = std::min<size_t>(there, partial_.header.bytes - payload_bytes_);
  if (taken == 0) return;
  std::memcpy(place_ + payload_bytes_, lookahead_.get() + lookahead_begin_, taken);
  payload_bytes_ += taken;
  lookahead_begin_ += taken;
}

void TcpLink::end_payload() {
  received_ += partial_.header.bytes;
  partial_.payload = place_;
  partial_.end = received_;
  frames_.push_back(std::move(partial_));
  partial_ = Frame();
  has_header_ = false;
}

bool TcpLink::poll() {
  const size_t before = frames_.size();
  for (size_t taken = 0; may_read() && taken < kMostAtOnce;) {
    const size_t got = receive();
    if (got == 0) break;
    taken += got;
    parse();
  }
  return frames_.size() != before;
}

bool TcpLink::set_aside() {
  if (ended_ || waiting_bytes() < most_waiting_) return false;
  most_waiting_ += kMostWaiting;
  return true;
}

void TcpLink::recycle(Frame& frame) {
  if (frame.owned != nullptr) pool_->give_back(std::move(frame.owned), frame.header.bytes);
}

void TcpLink::end_writes() { shutdown(socket_.get(), SHUT_WR); }

void TcpLink::discard_input() {
  std::array<std::byte, 4096> nowhere;
  while (!ended_ && noticed_) {
    const ssize_t got = recv(socket_.get(), nowhere.data(), nowhere.size(), 0);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) ended_ = true;
    if (relies_on_notice_ && !at_end_) noticed_ = false;
    return;
  }
}

// Sockets of other kinds than TCP are inside a host: what was sent is there.
bool TcpLink::delivered() const {
  if (wants_to_write()) return false;
  int protocol = 0;
  socklen_t length = sizeof(protocol);
  if (ended_ || broken_ || getsockopt(socket_.get(), SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0) return true;
  int unacknowledged = 0;
  return protocol != IPPROTO_TCP || ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

}  // namespace hvd
