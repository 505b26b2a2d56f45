#include "transport/transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <numeric>

#include "base/error.h"

namespace hvd {
namespace {

Fd make_event_fd() {
  Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) throw_errno("cannot make an eventfd");
  return fd;
}

Fd make_timer() {
  Fd fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd.valid()) throw_errno("cannot make a timer");
  return fd;
}

Fd duplicate(const Fd& fd) {
  Fd copy(dup(fd.get()));
  if (!copy.valid()) throw_errno("cannot duplicate a descriptor");
  return copy;
}

int wait(const Fd& epoll, std::span<epoll_event> events, std::optional<Duration> timeout) {
  const auto milliseconds = [&]() -> int {
    if (!timeout) return -1;
    const auto ceiled = std::chrono::ceil<std::chrono::milliseconds>(std::max(*timeout, Duration::zero()));
    return static_cast<int>(std::min<int64_t>(ceiled.count(), 3'600'000));
  }();
  const int num_events = epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  if (num_events < 0 && errno != EINTR) {
    throw_errno(
        "cannot wait for events, as if the program had closed descriptors of Horovod's engine, which "
        "os.closerange() and code that makes a daemon do");
  }
  return std::max(num_events, 0);
}

// Without hosts ranks are all on one, or each on another.
std::vector<int> complete_hosts(const TransportParts& parts) {
  std::vector<int> hosts = parts.hosts;
  const auto size = static_cast<size_t>(parts.size);
  if (!hosts.empty() && hosts.size() != size) {
    throw Error(ErrorKind::kUsage, "the hosts of " + std::to_string(hosts.size()) +
                                       " ranks were given to a transport of " + std::to_string(parts.size) +
                                       "; give that of each rank");
  }
  if (hosts.empty()) {
    hosts.resize(size, 0);
    if (!parts.remote_peers.empty()) std::iota(hosts.begin(), hosts.end(), 0);
  }
  const auto here = hosts[static_cast<size_t>(parts.rank)];
  const auto check = [&](int rank, bool local) {
    if ((hosts.at(static_cast<size_t>(rank)) == here) == local) return;
    throw Error(ErrorKind::kUsage, "rank " + std::to_string(rank) + " is reached " +
                                       (local ? "through shared memory" : "over the network") +
                                       ", but the hosts given to rank " + std::to_string(parts.rank) +
                                       " say otherwise; give the host of each rank");
  };
  for (const LocalPeer& peer : parts.local_peers) check(peer.rank, true);
  for (const RemotePeer& peer : parts.remote_peers) check(peer.rank, false);
  return hosts;
}

int most_ranks_of_a_host(const std::vector<int>& hosts) {
  std::map<int, int> ranks;
  int most = 1;
  for (const int host : hosts) most = std::max(most, ++ranks[host]);
  return most;
}

// Two ranks that talk through memory, in one process.
void join_local(TransportParts& a, TransportParts& b) {
  auto [mine, theirs] = make_socket_pair();
  a.local_peers.push_back({b.rank, b.local_index, b.segment, duplicate(b.doorbell), std::move(mine)});
  b.local_peers.push_back({a.rank, a.local_index, a.segment, duplicate(a.doorbell), std::move(theirs)});
}

void join_remote(TransportParts& a, TransportParts& b, int num_streams,
                 const std::function<ConnectedPair()>& make_pair) {
  auto [control, peer_control] = make_pair();
  RemotePeer& mine = a.remote_peers.emplace_back(RemotePeer{b.rank, std::move(control), {}});
  RemotePeer& theirs = b.remote_peers.emplace_back(RemotePeer{a.rank, std::move(peer_control), {}});
  for (int stream = 0; stream < num_streams; ++stream) {
    auto [data, peer_data] = make_pair();
    mine.data.push_back(std::move(data));
    theirs.data.push_back(std::move(peer_data));
  }
}

}  // namespace

Transport::Transport(TransportParts parts)
    : rank_(parts.rank),
      size_(parts.size),
      num_local_(parts.num_local),
      segment_(parts.segment ? std::move(parts.segment) : Segment::create_private(1)),
      event_fd_(parts.doorbell.valid() ? std::move(parts.doorbell) : make_event_fd()),
      gather_timer_(make_timer()),
      doorbell_(segment_->doorbell(), event_fd_.get(), bells_are_broken_.get(), gather_timer_.get()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      all_local_(parts.remote_peers.empty()),
      hosts_(complete_hosts(parts)),
      max_frame_bytes_(
          static_cast<int64_t>(all_local_ ? max_ring_frame_bytes(parts.num_local) : least_ring_frame_bytes())),
      max_frame_bytes_here_(static_cast<int64_t>(max_ring_frame_bytes(most_ranks_of_a_host(hosts_)))),
      peers_(static_cast<size_t>(parts.size)),
      outbox_(segment_->outbox()) {
  if (!epoll_.valid()) throw_errno("cannot make an epoll descriptor");
  for (const Fd* fd : {&event_fd_, &gather_timer_}) {
    watch(fd->get(), EPOLLIN | EPOLLET, nullptr);  // edges: no need to read it empty
  }
  for (LocalPeer& peer : parts.local_peers) add_local(std::move(peer), parts.local_index);
  for (RemotePeer& peer : parts.remote_peers) add_remote(std::move(peer));
  if (!all_local_) make_thread_epoll();
}

Transport::~Transport() = default;

void Transport::make_thread_epoll() {
  thread_epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  timer_ = make_timer();
  if (!thread_epoll_.valid()) throw_errno("cannot make an epoll descriptor");
  const auto add = [&](const Fd& fd, uint32_t events) {
    epoll_event event{.events = events, .data = {}};
    if (epoll_ctl(thread_epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) throw_errno("cannot watch a descriptor");
  };
  add(epoll_, EPOLLIN);
  add(event_fd_, EPOLLIN | EPOLLET);
  add(timer_, EPOLLIN | EPOLLET);
  add(gather_timer_, EPOLLIN | EPOLLET);
}

// `who`: the TcpLink, this object for a peer on this host, nothing for the doorbell.
void Transport::watch(int fd, uint32_t events, void* who) {
  epoll_event event{.events = events, .data = {.ptr = who}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("cannot watch a descriptor");
}

void Transport::add_local(LocalPeer given, int my_local_index) {
  Peer& peer = peers_.at(static_cast<size_t>(given.rank));
  peer.doorbell = std::move(given.doorbell);
  peer.liveness = std::move(given.liveness);
  peer.segment = std::move(given.segment);
  peer.bell.emplace(peer.segment->doorbell(), peer.doorbell.get(), bells_are_broken_.get(), -1, owes_wake_.get());
  const auto make_link = [&](LinkKind kind) {
    return std::make_unique<RingLink>(peer.segment->ring(my_local_index, kind), segment_->ring(given.local_index, kind),
                                      *peer.bell, peer.segment->outbox());
  };
  peer.control = make_link(LinkKind::kControl);
  auto data = make_link(LinkKind::kData);
  peer.ring = data.get();
  peer.data.push_back(std::move(data));
  watch(peer.liveness.get(), EPOLLRDHUP | EPOLLET, this);
}

void Transport::add_remote(RemotePeer given) {
  Peer& peer = peers_.at(static_cast<size_t>(given.rank));
  const auto add = [&](Fd socket) {
    auto link = std::make_unique<TcpLink>(std::move(socket), blocks_);
    link->rely_on_notice();
    peer.sockets.push_back(link.get());
    // Edges of both kinds: the system reports room only after a send that found none.
    watch(link->fd(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, link.get());
    return link;
  };
  peer.control = add(std::move(given.control));
  for (Fd& socket : given.data) peer.data.push_back(add(std::move(socket)));
}

// Numbers that follow each other, and those at any other regular distance, are spread evenly.
Link& Transport::data(int peer, const FrameKey& key) {
  const auto& links = peers_[static_cast<size_t>(peer)].data;
  constexpr uint32_t kGoldenRatio = 0x9e3779b9;  // of 2^32
  const uint64_t place = (key.lane + key.sequence) * kGoldenRatio;
  return *links[static_cast<size_t>(((place & 0xffffffff) * links.size()) >> 32)];
}

int Transport::pid_of(int peer) const {
  const Fd& liveness = peers_[static_cast<size_t>(peer)].liveness;
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (!liveness.valid() || getsockopt(liveness.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return 0;
  return credentials.pid;
}

std::shared_ptr<SharedRegion> Transport::map_region(size_t offset, size_t bytes) const {
  std::vector<const Segment*> segments;
  for (const Peer& peer : peers_) segments.push_back(peer.segment.get());
  segments[static_cast<size_t>(rank_)] = segment_.get();
  return std::make_shared<SharedRegion>(segments, rank_, offset, bytes);
}

void Transport::wake_away(Duration at_least) {
  if (!owes_wake_->load(std::memory_order_relaxed)) return;
  if (at_least > Duration::zero()) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (!owes_since_) owes_since_ = now;
    if (now - *owes_since_ < at_least) return;
  }
  owes_since_.reset();
  owes_wake_->store(false, std::memory_order_relaxed);
  for (const Peer& peer : peers_) {
    if (peer.bell) peer.bell->wake_away();
  }
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
  return std::any_of(sockets.begin(), sockets.end(),
                     [&](const TcpLink* link) { return link != sockets.front() && link->ended(); });
}

bool Transport::data_may_follow(int peer) const {
  const auto& sockets = peers_[static_cast<size_t>(peer)].sockets;
  return std::any_of(sockets.begin(), sockets.end(),
                     [&](const TcpLink* link) { return link != sockets.front() && !link->ended(); });
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

bool Transport::poll_data() {
  bool more = false;
  if (!all_local_) notice();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    naming_sender(static_cast<int>(rank), [&] {
      for (const auto& link : peer.data) link->poll();
    });
    for (size_t i = 1; i < peer.sockets.size(); ++i) more = peer.sockets[i]->may_read() || more;
  }
  return more;
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
    for (const auto& link : peer.data) helped = link->set_aside() || helped;
  }
  return helped;
}

Transport::Waking Transport::wait_epoll(std::optional<Duration> timeout) const {
  std::array<epoll_event, 16> events{};
  const int num_events = wait(all_local_ ? epoll_ : thread_epoll_, events, timeout);
  if (num_events == 0) return Waking::kTime;
  const bool connection = all_local_ && std::any_of(events.begin(), events.begin() + num_events,
                                                    [](const epoll_event& event) { return event.data.ptr != nullptr; });
  return connection ? Waking::kConnection : Waking::kDoorbell;
}

void Transport::let_thread_watch(bool watches) {
  if (all_local_ || watches == thread_watches_) return;
  epoll_event event{.events = watches ? EPOLLIN : 0U, .data = {}};
  if (epoll_ctl(thread_epoll_.get(), EPOLL_CTL_MOD, epoll_.get(), &event) != 0) throw_errno("cannot watch the sockets");
  thread_watches_ = watches;
}

void Transport::wake_thread_in(Duration time) const {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = nanoseconds}};
  if (!all_local_ && timerfd_settime(timer_.get(), 0, &when, nullptr) != 0) throw_errno("cannot set a timer");
}

bool Transport::notice(Duration timeout) {
  std::array<epoll_event, 64> events{};
  const int num_events = wait(epoll_, events, timeout);
  bool any = false;
  for (int i = 0; i < num_events; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == nullptr) continue;
    if (event.data.ptr == this) {
      any = liveness_event_ = true;
      continue;
    }
    auto& link = *static_cast<TcpLink*>(event.data.ptr);
    const bool at_end = (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    const bool readable = at_end || (event.events & EPOLLIN) != 0;
    if (readable) link.notice(at_end);
    any = any || readable || link.wants_to_write();
  }
  return any;
}

bool Transport::finish_sending(bool data_matter) {
  notice();
  for (Peer& peer : peers_) {
    for (TcpLink* link : peer.sockets) link->discard_input();
  }
  end_writes(Ending::kControl);
  if (!all_delivered(Ending::kControl)) return false;
  // Not before: who sees the end of its data looks for our goodbye.
  if (!data_matter) return true;
  end_writes(Ending::kData);
  return all_delivered(Ending::kData);
}

void Transport::end_writes(Ending which) {
  if (ending_ >= which) return;
  ending_ = which;
  for (Peer& peer : peers_) {
    for (size_t i = 0; i < peer.sockets.size(); ++i) {
      if ((i == 0) == (which == Ending::kControl)) peer.sockets[i]->end_writes();
    }
  }
}

bool Transport::all_delivered(Ending which) const {
  for (const Peer& peer : peers_) {
    for (size_t i = 0; i < peer.sockets.size(); ++i) {
      if ((i == 0) == (which == Ending::kControl) && !peer.sockets[i]->delivered()) return false;
    }
  }
  return true;
}

void Transport::abandon() {
  for (Peer& peer : peers_) {
    peer.liveness.reset();
    peer.doorbell.reset();
    peer.bell.reset();
    peer.sockets.clear();
    peer.control.reset();
    peer.ring = nullptr;
    peer.data.clear();
  }
  outbox_.clear();
  event_fd_.reset();
  gather_timer_.reset();
  epoll_.reset();
  thread_epoll_.reset();
  timer_.reset();
}

ConnectedPair make_socket_pair() {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) throw_errno("cannot make a socket pair");
  return {Fd(fds[0]), Fd(fds[1])};
}

std::vector<TransportParts> make_memory_transports(int size) {
  return make_socket_transports(size, std::vector<int>(static_cast<size_t>(size), 0));
}

std::vector<TransportParts> make_socket_transports(int size, const std::vector<int>& hosts, int num_streams,
                                                   const std::function<ConnectedPair()>& make_pair) {
  std::vector<TransportParts> all(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    TransportParts& parts = all[static_cast<size_t>(rank)];
    parts.rank = rank;
    parts.size = size;
    if (hosts.empty()) continue;
    const auto here = hosts.begin() + rank;
    parts.hosts = hosts;
    parts.num_local = static_cast<int>(std::count(hosts.begin(), hosts.end(), *here));
    parts.local_index = static_cast<int>(std::count(hosts.begin(), here, *here));
    parts.segment = Segment::create_shared(parts.num_local);
    parts.doorbell = make_event_fd();
  }
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (!hosts.empty() && hosts[a] == hosts[b]) {
        join_local(all[a], all[b]);
      } else {
        join_remote(all[a], all[b], num_streams, make_pair);
      }
    }
  }
  return all;
}

}  // namespace hvd
