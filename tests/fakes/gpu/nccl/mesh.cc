#include "nccl/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "nccl/injection.h"

namespace fake_nccl {
namespace {

constexpr int kGlanceMs = 10;
constexpr int kRetryMs = 2;

// The length of the address; the name begins with a zero byte, so it is in no file system.
socklen_t address_of(const std::string& name, int rank, sockaddr_un& address) {
  const std::string full = name + "/" + std::to_string(rank);
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(full.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, full.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

int make_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

Failure system_failure(const std::string& what) { return {kSystemError, what + ": " + std::strerror(errno)}; }

}  // namespace

Interrupt::Interrupt() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Interrupt::~Interrupt() { close(descriptor_); }

void Interrupt::set() {
  set_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof one);
}

std::string describe(const Header& header) {
  constexpr const char* kKinds[] = {"end",       "card",          "allreduce", "reduce",
                                    "broadcast", "reducescatter", "allgather", "send"};
  std::string text = header.kind < 0 || header.kind > 7 ? "garbage" : kKinds[header.kind];
  text += " number " + std::to_string(header.sequence) + " of " + std::to_string(header.count) + " elements of dtype " +
          std::to_string(header.dtype);
  return text + ", op " + std::to_string(header.op) + ", root " + std::to_string(header.root);
}

void Traffic::send(const Header& header, const std::byte* payload) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  outgoing.insert(outgoing.end(), bytes, bytes + sizeof header);
  if (header.payload > 0) outgoing.insert(outgoing.end(), payload, payload + header.payload);
}

struct Mesh::Progress {
  size_t sent = 0;
  size_t message = 0;   // that is being received
  size_t received = 0;  // bytes of it, with its header
  Header header;
};

Mesh::Mesh(std::string name, int rank, int size, const Interrupt& interrupt)
    : name_(std::move(name)), rank_(rank), size_(size), interrupt_(interrupt), peers_(static_cast<size_t>(size), -1) {}

Mesh::~Mesh() {
  if (listener_ >= 0) close(listener_);
  for (const int peer : peers_) {
    if (peer >= 0) close(peer);
  }
}

void Mesh::listen() {
  listener_ = make_socket();
  sockaddr_un address{};
  const socklen_t length = address_of(name_, rank_, address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno != EADDRINUSE) throw system_failure("bind");
    throw Failure(kInvalidUsage, "rank " + std::to_string(rank_) + " comes twice with the same unique id");
  }
  if (::listen(listener_, size_) != 0) throw system_failure("listen");
}

// To those below; returns whether it is there.
bool Mesh::try_connect(int peer) {
  int& descriptor = peers_[static_cast<size_t>(peer)];
  if (descriptor >= 0) return true;
  const int made = make_socket();
  sockaddr_un address{};
  const socklen_t length = address_of(name_, peer, address);
  if (::connect(made, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    close(made);
    return false;
  }
  if (::send(made, &rank_, sizeof rank_, MSG_NOSIGNAL) != sizeof rank_) {
    close(made);
    throw system_failure("send");
  }
  descriptor = made;
  return true;
}

void Mesh::accept_peers() {
  for (;;) {
    const int made = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made < 0) return;
    pollfd ready{made, POLLIN, 0};
    int rank = -1;
    const bool said = poll(&ready, 1, 5000) == 1 && recv(made, &rank, sizeof rank, 0) == sizeof rank;
    if (!said || rank <= rank_ || rank >= size_ || peers_[static_cast<size_t>(rank)] >= 0) {
      close(made);
      throw Failure(kInvalidUsage, "a rank " + std::to_string(rank) + " connects that should not");
    }
    peers_[static_cast<size_t>(rank)] = made;
  }
}

bool Mesh::is_complete() const { return std::count(peers_.begin(), peers_.end(), -1) == 1; }

std::vector<Card> Mesh::connect(const Card& mine) {
  listen();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!is_complete()) {
    if (interrupt_.is_set()) throw Ended();
    if (std::chrono::steady_clock::now() > deadline) throw Failure(kSystemError, "not all ranks came within 60 s");
    for (int peer = 0; peer < rank_; ++peer) {
      if (!try_connect(peer)) break;
    }
    pollfd waits[] = {{listener_, POLLIN, 0}, {interrupt_.descriptor(), POLLIN, 0}};
    poll(waits, 2, kRetryMs);
    accept_peers();
  }
  std::vector<Traffic> traffic(peers_.size());
  constexpr int kCard = 1;
  Header header;
  header.kind = kCard;
  header.payload = sizeof mine;
  for (Traffic& each : traffic) {
    each.send(header, reinterpret_cast<const std::byte*>(&mine));
    each.expect(header);
  }
  exchange(traffic, [] { return false; });
  std::vector<Card> cards(peers_.size(), mine);
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    std::memcpy(&cards[peer], traffic[peer].incoming[0].payload.data(), sizeof mine);
  }
  close(std::exchange(listener_, -1));
  return cards;
}

void Mesh::exchange(std::vector<Traffic>& traffic, const std::function<bool()>& ends) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<Progress> progress(traffic.size());
  for (;;) {
    std::vector<pollfd> waits{{interrupt_.descriptor(), POLLIN, 0}};
    std::vector<int> ranks{rank_};
    bool complete = true;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto at = static_cast<size_t>(peer);
      int events = progress[at].sent < traffic[at].outgoing.size() ? POLLOUT : 0;
      events |= progress[at].message < traffic[at].incoming.size() ? POLLIN : 0;
      if (events == 0) continue;
      complete = false;
      // One that is lost is waited for all the same, as NCCL's kernels do.
      if (peers_[at] < 0) continue;
      waits.push_back({peers_[at], static_cast<short>(events), 0});
      ranks.push_back(peer);
    }
    if (complete) return;
    if (interrupt_.is_set() || ends()) throw Ended();
    if (std::chrono::steady_clock::now() > deadline) throw Failure(kRemoteError, "a peer did nothing for 60 s");
    poll(waits.data(), waits.size(), kGlanceMs);
    for (size_t i = 1; i < waits.size(); ++i) {
      const auto at = static_cast<size_t>(ranks[i]);
      advance(ranks[i], traffic[at], progress[at], waits[i].revents);
    }
  }
}

void Mesh::advance(int peer, Traffic& traffic, Progress& progress, int events) {
  if ((events & POLLOUT) != 0) send_some(peer, traffic, progress);
  const bool expects = progress.message < traffic.incoming.size();
  if (expects && (events & (POLLIN | POLLHUP | POLLERR)) != 0) receive_some(peer, traffic, progress);
  if (!expects && (events & (POLLHUP | POLLERR)) != 0) lose(peer);
}

void Mesh::send_some(int peer, Traffic& traffic, Progress& progress) {
  const int descriptor = peers_[static_cast<size_t>(peer)];
  while (progress.sent < traffic.outgoing.size()) {
    const ssize_t sent = ::send(descriptor, traffic.outgoing.data() + progress.sent,
                                traffic.outgoing.size() - progress.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return;  // the end is read, too
    if (sent < 0) return;
    progress.sent += static_cast<size_t>(sent);
  }
}

void Mesh::receive_some(int peer, Traffic& traffic, Progress& progress) {
  const int descriptor = peers_[static_cast<size_t>(peer)];
  while (progress.message < traffic.incoming.size()) {
    Message& message = traffic.incoming[progress.message];
    const bool in_header = progress.received < sizeof(Header);
    auto* start = in_header ? reinterpret_cast<std::byte*>(&progress.header) : message.payload.data();
    const size_t offset = in_header ? progress.received : progress.received - sizeof(Header);
    const size_t bytes = (in_header ? sizeof(Header) : message.payload.size()) - offset;
    if (bytes > 0) {
      const ssize_t received = recv(descriptor, start + offset, bytes, MSG_DONTWAIT);
      if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (received <= 0) return lose(peer);
      progress.received += static_cast<size_t>(received);
    }
    if (progress.received < sizeof(Header)) continue;
    if (!(progress.header == message.header)) {
      throw Failure(kInvalidUsage, "rank " + std::to_string(rank_) + " does " + describe(message.header) +
                                       ", but rank " + std::to_string(peer) + " does " + describe(progress.header));
    }
    if (progress.received < sizeof(Header) + message.payload.size()) continue;
    ++progress.message;
    progress.received = 0;
  }
}

void Mesh::lose(int peer) {
  close(std::exchange(peers_[static_cast<size_t>(peer)], -1));
  if (notices_peers()) throw Failure(kRemoteError, "rank " + std::to_string(peer) + " has closed its connection");
}

}  // namespace fake_nccl
