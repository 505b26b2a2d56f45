// All links of one rank, and its sleep.
//
// A rank reaches every other rank by a control and a data link. Ranks on its host are reached through shared memory,
// and a socket to each of them stays open only to notice the end of the process. Ranks elsewhere are reached by TCP.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/segment.h"
#include "transport/tcp_link.h"

namespace hvd {

// A rank on the same host, or in the same process.
struct LocalPeer {
  int rank = 0;
  int local_index = 0;
  std::shared_ptr<Segment> segment;
  Fd doorbell;
  Fd liveness;
};

struct RemotePeer {
  int rank = 0;
  Fd control;
  Fd data;
};

struct TransportParts {
  int rank = 0;
  int size = 1;
  int num_local = 1;
  int local_index = 0;
  std::shared_ptr<Segment> segment;  // this rank's inbox
  Fd doorbell;                       // its eventfd
  std::vector<LocalPeer> local_peers;
  std::vector<RemotePeer> remote_peers;
};

class Transport {
 public:
  explicit Transport(TransportParts parts);
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] Link& control(int peer) { return *peers_[static_cast<size_t>(peer)].control; }
  [[nodiscard]] Link& data(int peer) { return *peers_[static_cast<size_t>(peer)].data; }
  [[nodiscard]] bool has(int peer) const { return peers_[static_cast<size_t>(peer)].control != nullptr; }
  // Whether every peer is on this host; then a waiting caller can drive the engine and sleep on a futex.
  [[nodiscard]] bool all_local() const { return all_local_; }
  // A length that frames between any two ranks of the job may have; the same on all ranks.
  [[nodiscard]] int64_t max_frame_bytes() const { return max_frame_bytes_; }
  // Whether the peer is on this host.
  [[nodiscard]] bool is_local(int peer) const { return peers_[static_cast<size_t>(peer)].liveness.valid(); }
  // The process of a rank on this host, 0 if it is not known.
  [[nodiscard]] int pid_of(int peer) const;
  [[nodiscard]] int num_local() const { return num_local_; }
  [[nodiscard]] const Doorbell& doorbell() const { return doorbell_; }

  // Which peers have closed their connection since the last call; asks the system about peers on this host only if
  // `ask_local`, because that costs a system call for each.
  [[nodiscard]] std::vector<int> take_ended(bool ask_local);

  // Whether the data connection to a remote peer has ended: what it sent before has been taken in.
  [[nodiscard]] bool data_ended(int peer) const;
  // Whether data of a peer that said goodbye may still be on their way: goodbyes take another connection.
  [[nodiscard]] bool data_may_follow(int peer) const;

  // Sleeps until the doorbell rings, a socket has something, or the time is over. Only for the engine's thread; needs
  // no lock. The caller has armed the doorbell. Returns whether a connection to a peer said something.
  bool wait_epoll(std::optional<Duration> timeout) const;
  // Takes in what has arrived on the data links.
  void poll_data();
  // Passes on what is buffered; returns whether nothing is left.
  bool flush();
  // Makes room where frames that nobody waits for are in the way; returns whether that changed anything.
  bool set_aside();
  // In the child of a fork: closes this process's copies of the descriptors, so that the peers see the end of the
  // parent.
  void abandon();
  // Adapts epoll to the links that have bytes to write. Needs the engine's lock.
  void watch_writes();

 private:
  struct Peer {
    std::unique_ptr<Link> control;
    std::unique_ptr<Link> data;
    std::vector<TcpLink*> sockets;  // of a remote peer: control, data
    std::vector<bool> watching_writes;
    Fd liveness;  // of a local peer
    Fd doorbell;  // of a local peer
    std::shared_ptr<Segment> segment;
    bool ended = false;
  };

  void add_local(LocalPeer given, int my_local_index);
  void add_remote(RemotePeer given);
  void watch(int fd, uint32_t events);
  [[nodiscard]] static bool has_ended(const Peer& peer, bool ask_local);

  int rank_;
  int size_;
  int num_local_;
  std::shared_ptr<Segment> segment_;
  Fd event_fd_;
  Doorbell doorbell_;
  Fd epoll_;
  bool all_local_;
  int64_t max_frame_bytes_;
  std::vector<Peer> peers_;
};

// The parts of `size` ranks that are threads of one process.
[[nodiscard]] std::vector<TransportParts> make_memory_transports(int size);
// The parts of `size` ranks in one process that talk over TCP on loopback sockets; for tests.
[[nodiscard]] std::vector<TransportParts> make_socket_transports(int size);

}  // namespace hvd
