#include "transport/tcp_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace hvd {
namespace {

constexpr size_t kSendBuffer = size_t{1} << 20;
constexpr size_t kMostFrame = kSendBuffer / 4;
constexpr uint64_t kMostWaiting = uint64_t{4} << 20;  // frames that nobody used yet; then the peer has to wait

}  // namespace

TcpLink::TcpLink(Fd socket) : socket_(std::move(socket)), outgoing_(kSendBuffer), most_waiting_(kMostWaiting) {
  const int flags = fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw_errno("cannot make the socket to a peer non-blocking");
  }
}

size_t TcpLink::max_frame_bytes() const { return kMostFrame; }

std::byte* TcpLink::try_reserve(size_t bytes) {
  const size_t needed = sizeof(FrameHeader) + bytes;
  if (write_end_ + needed > kSendBuffer && flush()) write_offset_ = write_end_ = 0;
  if (write_end_ + needed > kSendBuffer && write_offset_ > 0) {
    std::memmove(outgoing_.data(), outgoing_.data() + write_offset_, write_end_ - write_offset_);
    write_end_ -= write_offset_;
    write_offset_ = 0;
  }
  if (write_end_ + needed > kSendBuffer) return nullptr;
  return outgoing_.data() + write_end_ + sizeof(FrameHeader);
}

void TcpLink::commit(const FrameHeader& header) {
  std::memcpy(outgoing_.data() + write_end_, &header, sizeof(header));
  write_end_ += sizeof(header) + header.bytes;
  flush();
}

bool TcpLink::flush() {
  while (wants_to_write()) {
    const ssize_t sent =
        send(socket_.get(), outgoing_.data() + write_offset_, write_end_ - write_offset_, MSG_NOSIGNAL);
    if (sent > 0) {
      write_offset_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      write_offset_ = write_end_ = 0;  // broken: nobody reads it; poll() takes in what the peer sent and sees the end
    }
  }
  return !wants_to_write();
}

size_t TcpLink::receive(std::byte* to, size_t bytes) {
  while (true) {
    const ssize_t got = recv(socket_.get(), to, bytes, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) ended_ = true;
    return 0;
  }
}

// Takes in a part of the frame that is arriving; returns whether there was anything to read.
bool TcpLink::receive_frame() {
  constexpr size_t header_bytes = sizeof(FrameHeader);
  size_t got = 0;
  if (partial_bytes_ < header_bytes) {
    got = receive(reinterpret_cast<std::byte*>(&partial_.header) + partial_bytes_, header_bytes - partial_bytes_);
    partial_bytes_ += got;
    if (partial_bytes_ < header_bytes) return got > 0;
    if (partial_.header.bytes > kMostFrame) {
      ended_ = true;  // where the next frame starts cannot be known
      throw Error(ErrorKind::kInternal, "a frame of a peer is longer than frames may be");
    }
    partial_.owned = std::make_unique_for_overwrite<std::byte[]>(partial_.header.bytes);
  }
  const size_t wanted = header_bytes + partial_.header.bytes - partial_bytes_;
  if (wanted > 0) {
    got = receive(partial_.owned.get() + (partial_bytes_ - header_bytes), wanted);
    partial_bytes_ += got;
  }
  if (got == wanted) {
    received_ += partial_.header.bytes;
    partial_.payload = partial_.owned.get();
    partial_.end = received_;
    frames_.push_back(std::move(partial_));
    partial_ = Frame();
    partial_bytes_ = 0;
    return true;
  }
  return got > 0;
}

bool TcpLink::poll() {
  const size_t before = frames_.size();
  while (!ended_ && received_ - released_ < most_waiting_ && receive_frame()) {
  }
  return frames_.size() != before;
}

bool TcpLink::set_aside() {
  if (ended_ || received_ - released_ < most_waiting_) return false;
  most_waiting_ += kMostWaiting;
  return true;
}

}  // namespace hvd
