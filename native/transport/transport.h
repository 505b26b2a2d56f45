// All links of one rank, and its sleep.
//
// A rank reaches every other rank by a control and a data link. Ranks on its host are reached through shared memory,
// and a socket to each of them stays open only to notice the end of the process. Ranks elsewhere are reached by TCP.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/outbox.h"
#include "transport/ring_link.h"
#include "transport/segment.h"
#include "transport/shared_region.h"
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
  std::vector<Fd> data;  // as many on both ends, in the same order
};

struct TransportParts {
  int rank = 0;
  int size = 1;
  int num_local = 1;
  int local_index = 0;
  std::vector<int> hosts;            // of each rank; empty if all are on one host, or each on another
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
  // The link that carries the frames of this key: those of one key stay in order.
  [[nodiscard]] Link& data(int peer, const FrameKey& key);
  // The data link to a peer on this host, or nullptr; and what the frames for several of these may share.
  [[nodiscard]] RingLink* ring(int peer) { return peers_[static_cast<size_t>(peer)].ring; }
  [[nodiscard]] Outbox& outbox() { return outbox_; }
  [[nodiscard]] bool has(int peer) const { return peers_[static_cast<size_t>(peer)].control != nullptr; }
  // Whether every peer is on this host; then a waiting caller can sleep on a futex.
  [[nodiscard]] bool all_local() const { return all_local_; }
  // A length that frames between any two ranks of the job may have; the same on all ranks.
  [[nodiscard]] int64_t max_frame_bytes() const { return max_frame_bytes_; }
  // The same for the hosts of this job, none of which has very many ranks, as a rule: up to 256 KiB.
  [[nodiscard]] int64_t max_frame_bytes_here() const { return max_frame_bytes_here_; }
  // Whether the peer is on this host.
  [[nodiscard]] bool is_local(int peer) const { return peers_[static_cast<size_t>(peer)].liveness.valid(); }
  // The process of a rank on this host, 0 if it is not known.
  [[nodiscard]] int pid_of(int peer) const;
  [[nodiscard]] int num_local() const { return num_local_; }
  // The host of each rank of the job, by number; the same on all ranks.
  [[nodiscard]] const std::vector<int>& hosts() const { return hosts_; }
  [[nodiscard]] const Doorbell& doorbell() const { return doorbell_; }
  // Whether this rank could not wake itself or another one, because the program closed descriptors of the engine.
  [[nodiscard]] bool cannot_wake() const { return *bells_are_broken_; }
  // Wakes the ranks of this host that were rung while they were away, if that was at least so long ago: a caller of
  // theirs may come by itself until then. Whoever drives calls it again and again, and with no time before it stops.
  // Needs the engine's lock.
  void wake_away(Duration at_least = Duration::zero());
  // Maps the same part of the room for arrays of every rank; all of them are on this host. Throws Error if the system
  // refuses.
  [[nodiscard]] std::shared_ptr<SharedRegion> map_region(size_t offset, size_t bytes) const;

  // Which peers have closed their connection since the last call; asks the system about peers on this host only if
  // `ask_local`, because that costs a system call for each.
  [[nodiscard]] std::vector<int> take_ended(bool ask_local);

  // Whether a data connection to a remote peer has ended: what it sent before has been taken in.
  [[nodiscard]] bool data_ended(int peer) const;
  // Whether data of a peer that said goodbye may still be on their way: goodbyes take another connection.
  [[nodiscard]] bool data_may_follow(int peer) const;

  // Why the engine's thread woke up.
  enum class Waking : uint8_t { kTime, kDoorbell, kConnection };
  // Sleeps until the doorbell rings, a socket has something, or the time is over. Only for the engine's thread; needs
  // no lock. The caller has armed the doorbell. With remote peers sockets count as the doorbell: who drives takes
  // notice.
  [[nodiscard]] Waking wait_epoll(std::optional<Duration> timeout) const;
  // Whether sockets wake the engine's thread out of wait_epoll(): not while a caller drives, who sleeps in notice().
  // Needs the engine's lock, as the next one.
  void let_thread_watch(bool watches);
  // Wakes the engine's thread after this time if it does not watch, so that it does again.
  void wake_thread_in(Duration time) const;
  // Takes notice of what the sockets report, for at most this long; sleeps until then if the caller has armed the
  // doorbell. Returns whether a connection has something to be done. Needs the engine's lock.
  bool notice(Duration timeout = Duration::zero());
  // Whether a connection to a peer on this host said something since the last call.
  [[nodiscard]] bool take_liveness_event() { return std::exchange(liveness_event_, false); }
  // Takes in what has arrived on the data links. Returns whether there is more.
  bool poll_data();
  // Passes on what is buffered; returns whether nothing is left.
  bool flush();
  // Makes room where frames that nobody waits for are in the way; returns whether that changed anything.
  bool set_aside();
  // At the end, again and again until it returns true: sees to it that all that was sent arrives, first on the control
  // connections, then on the data connections if `data_matter`. Throws away what comes in.
  bool finish_sending(bool data_matter);
  // In the child of a fork: closes this process's copies of the descriptors, so that the peers see the end of the
  // parent.
  void abandon();

 private:
  struct Peer {
    std::unique_ptr<Link> control;
    std::vector<std::unique_ptr<Link>> data;
    RingLink* ring = nullptr;       // of a local peer: data
    std::vector<TcpLink*> sockets;  // of a remote peer: control, data
    Fd liveness;                    // of a local peer
    Fd doorbell;                    // of a local peer
    std::optional<Doorbell> bell;   // likewise
    std::shared_ptr<Segment> segment;
    bool ended = false;
  };

  void add_local(LocalPeer given, int my_local_index);
  void add_remote(RemotePeer given);
  enum class Ending : uint8_t { kNot, kControl, kData };

  void watch(int fd, uint32_t events, void* who);
  void make_thread_epoll();
  // Ends the writes of all control or all data connections, or does nothing if that was done.
  void end_writes(Ending which);
  [[nodiscard]] bool all_delivered(Ending which) const;
  [[nodiscard]] static bool has_ended(const Peer& peer, bool ask_local);

  int rank_;
  int size_;
  int num_local_;
  std::shared_ptr<Segment> segment_;
  Fd event_fd_;
  Fd gather_timer_;  // of the doorbell
  std::unique_ptr<std::atomic<bool>> bells_are_broken_ = std::make_unique<std::atomic<bool>>(false);
  Doorbell doorbell_;
  std::unique_ptr<std::atomic<bool>> owes_wake_ = std::make_unique<std::atomic<bool>>(false);
  std::optional<TimePoint> owes_since_;  // as far as wake_away() knows
  Fd epoll_;
  // With remote peers the engine's thread sleeps here, and wakes for epoll_ (if it watches), the doorbell or the timer.
  Fd thread_epoll_;
  Fd timer_;
  bool thread_watches_ = true;
  bool liveness_event_ = false;
  Ending ending_ = Ending::kNot;
  std::shared_ptr<BlockPool> blocks_ = std::make_shared<BlockPool>();
  bool all_local_;
  std::vector<int> hosts_;
  int64_t max_frame_bytes_;
  int64_t max_frame_bytes_here_;
  std::vector<Peer> peers_;
  Outbox outbox_;
};

// The parts of `size` ranks that are threads of one process.
[[nodiscard]] std::vector<TransportParts> make_memory_transports(int size);
using ConnectedPair = std::pair<Fd, Fd>;
[[nodiscard]] ConnectedPair make_socket_pair();
// The parts of `size` ranks in one process that talk over stream sockets; for tests. Ranks with an equal number in
// `hosts` talk through memory.
[[nodiscard]] std::vector<TransportParts> make_socket_transports(
    int size, const std::vector<int>& hosts = {}, int num_streams = 2,
    const std::function<ConnectedPair()>& make_pair = make_socket_pair);

}  // namespace hvd
