#include "transport/transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"
#include "transport/ring_link.h"

namespace hvd {
namespace {

Fd make_event_fd() {
  Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) throw_errno("cannot make an eventfd");
  return fd;
}

std::pair<Fd, Fd> make_socket_pair() {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) throw_errno("cannot make a socket pair");
  return {Fd(fds[0]), Fd(fds[1])};
}

Fd duplicate(const Fd& fd) {
  Fd copy(dup(fd.get()));
  if (!copy.valid()) throw_errno("cannot duplicate a descriptor");
  return copy;
}

}  // namespace

Transport::Transport(TransportParts parts)
    : rank_(parts.rank),
      size_(parts.size),
      num_local_(parts.num_local),
      segment_(parts.segment ? std::move(parts.segment) : Segment::create_private(1)),
      event_fd_(parts.doorbell.valid() ? std::move(parts.doorbell) : make_event_fd()),
      doorbell_(segment_->doorbell(), event_fd_.get()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      all_local_(parts.remote_peers.empty()),
      max_frame_bytes_(
          static_cast<int64_t>(all_local_ ? max_ring_frame_bytes(parts.num_local) : least_ring_frame_bytes())),
      peers_(static_cast<size_t>(parts.size)) {
  if (!epoll_.valid()) throw_errno("cannot make an epoll descriptor");
  watch(event_fd_.get(), EPOLLIN | EPOLLET);  // edges: no need to read it empty
  for (LocalPeer& peer : parts.local_peers) add_local(std::move(peer), parts.local_index);
  for (RemotePeer& peer : parts.remote_peers) add_remote(std::move(peer));
}

Transport::~Transport() = default;

void Transport::watch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("cannot watch a descriptor");
}

void Transport::add_local(LocalPeer given, int my_local_index) {
  Peer& peer = peers_.at(static_cast<size_t>(given.rank));
  peer.doorbell = std::move(given.doorbell);
  peer.liveness = std::move(given.liveness);
  peer.segment = std::move(given.segment);
  const Doorbell bell(peer.segment->doorbell(), peer.doorbell.get());
  const auto make_link = [&](LinkKind kind) {
    return std::make_unique<RingLink>(peer.segment->ring(my_local_index, kind), segment_->ring(given.local_index, kind),
                                      bell);
  };
  peer.control = make_link(LinkKind::kControl);
  peer.data = make_link(LinkKind::kData);
  watch(peer.liveness.get(), EPOLLRDHUP | EPOLLET);
}

void Transport::add_remote(RemotePeer given) {
  Peer& peer = peers_.at(static_cast<size_t>(given.rank));
  auto control = std::make_unique<TcpLink>(std::move(given.control));
  auto data = std::make_unique<TcpLink>(std::move(given.data));
  peer.sockets = {control.get(), data.get()};
  peer.watching_writes = {false, false};
  peer.control = std::move(control);
  peer.data = std::move(data);
  for (const TcpLink* link : peer.sockets) watch(link->fd(), EPOLLIN | EPOLLRDHUP | EPOLLET);
}

int Transport::pid_of(int peer) const {
  const Fd& liveness = peers_[static_cast<size_t>(peer)].liveness;
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (!liveness.valid() || getsockopt(liveness.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return 0;
  return credentials.pid;
}

bool Transport::has_ended(const Peer& peer, bool ask_local) {
  if (peer.liveness.valid()) {
    pollfd query{peer.liveness.get(), POLLRDHUP, 0};
    return ask_local && ::poll(&query, 1, 0) > 0;
  }
  return !peer.sockets.empty() && peer.sockets.front()->ended();
}

bool Transport::data_ended(int peer) const {
  const auto& sockets = peers_[static_cast<size_t>(peer)].sockets;
  return !sockets.empty() && sockets.back()->ended();
}

bool Transport::data_may_follow(int peer) const {
  return !peers_[static_cast<size_t>(peer)].sockets.empty() && !data_ended(peer);
}

std::vector<int> Transport::take_ended(bool ask_local) {
  std::vector<int> ended;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.control == nullptr || peer.ended || !has_ended(peer, ask_local)) continue;
    peer.ended = true;
    ended.push_back(static_cast<int>(rank));
  }
  return ended;
}

void Transport::poll_data() {
  for (Peer& peer : peers_) {
    if (peer.data != nullptr) peer.data->poll();
  }
}

bool Transport::flush() {
  bool empty = true;
  for (Peer& peer : peers_) {
    for (TcpLink* link : peer.sockets) empty = link->flush() && empty;
  }
  return empty;
}

bool Transport::set_aside() {
  bool helped = false;
  for (Peer& peer : peers_) {
    if (peer.data != nullptr) helped = peer.data->set_aside() || helped;
  }
  return helped;
}

bool Transport::wait_epoll(std::optional<Duration> timeout) const {
  std::array<epoll_event, 16> events{};
  const auto milliseconds = [&]() -> int {
    if (!timeout) return -1;
    const auto ceiled = std::chrono::ceil<std::chrono::milliseconds>(std::max(*timeout, Duration::zero()));
    return static_cast<int>(std::min<int64_t>(ceiled.count(), 3'600'000));
  }();
  const int num_events = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  if (num_events < 0 && errno != EINTR) throw_errno("cannot wait for events");
  for (int i = 0; i < num_events; ++i) {
    if (events[static_cast<size_t>(i)].data.fd != event_fd_.get()) return true;
  }
  return false;
}

void Transport::abandon() {
  for (Peer& peer : peers_) {
    peer.liveness.reset();
    peer.doorbell.reset();
    peer.sockets.clear();
    peer.control.reset();
    peer.data.reset();
  }
  event_fd_.reset();
  epoll_.reset();
}

void Transport::watch_writes() {
  for (Peer& peer : peers_) {
    for (size_t i = 0; i < peer.sockets.size(); ++i) {
      const TcpLink& link = *peer.sockets[i];
      if (link.wants_to_write() == peer.watching_writes[i]) continue;
      peer.watching_writes[i] = link.wants_to_write();
      epoll_event event{};
      event.events = EPOLLIN | EPOLLRDHUP | EPOLLET | (peer.watching_writes[i] ? EPOLLOUT : 0U);
      event.data.fd = link.fd();
      if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.fd(), &event) != 0) throw_errno("cannot watch a socket");
    }
  }
}

std::vector<TransportParts> make_memory_transports(int size) {
  std::vector<TransportParts> all(static_cast<size_t>(size));
  std::vector<std::shared_ptr<Segment>> segments;
  for (int rank = 0; rank < size; ++rank) {
    TransportParts& parts = all[static_cast<size_t>(rank)];
    parts.rank = parts.local_index = rank;
    parts.size = parts.num_local = size;
    parts.segment = Segment::create_private(size);
    parts.doorbell = make_event_fd();
  }
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      auto [mine, theirs] = make_socket_pair();
      all[a].local_peers.push_back(
          {all[b].rank, all[b].rank, all[b].segment, duplicate(all[b].doorbell), std::move(mine)});
      all[b].local_peers.push_back(
          {all[a].rank, all[a].rank, all[a].segment, duplicate(all[a].doorbell), std::move(theirs)});
    }
  }
  return all;
}

std::vector<TransportParts> make_socket_transports(int size) {
  std::vector<TransportParts> all(static_cast<size_t>(size));
  for (size_t a = 0; a < all.size(); ++a) {
    all[a].rank = static_cast<int>(a);
    all[a].size = size;
    for (size_t b = 0; b < a; ++b) {
      auto [control, peer_control] = make_socket_pair();
      auto [data, peer_data] = make_socket_pair();
      all[a].remote_peers.push_back({static_cast<int>(b), std::move(control), std::move(data)});
      all[b].remote_peers.push_back({static_cast<int>(a), std::move(peer_control), std::move(peer_data)});
    }
  }
  return all;
}

}  // namespace hvd
