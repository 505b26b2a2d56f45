// Connections between the ranks of a communicator: sockets without a name in the file system, so between threads and
// between processes of a machine. All waits end by Interrupt.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "nccl/codes.h"

namespace fake_nccl {

// Wakes what waits, for good.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  void set();
  [[nodiscard]] bool is_set() const { return set_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::atomic<bool> set_{false};
};

// What a rank says of itself at first.
struct Card {
  int rank = 0;
  int size = 0;
  int version = 0;
  int device = 0;
  char uuid[16] = {};
};

// What all ranks must say alike of a collective, and both of a send.
struct Header {
  int kind = 0;
  int dtype = 0;
  int op = 0;
  int root = 0;
  uint64_t count = 0;
  uint64_t sequence = 0;
  uint64_t payload = 0;  // bytes that follow

  bool operator==(const Header&) const = default;
};
[[nodiscard]] std::string describe(const Header& header);

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

// With one peer: what goes and what has to come, in order. `incoming` holds the expected headers.
struct Traffic {
  std::vector<std::byte> outgoing;
  std::vector<Message> incoming;

  void send(const Header& header, const std::byte* payload);
  void expect(const Header& header) { incoming.push_back({header, std::vector<std::byte>(header.payload)}); }
};

class Mesh {
 public:
  Mesh(std::string name, int rank, int size, const Interrupt& interrupt);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh();

  // Meets all others. Returns their cards by rank. Throws Failure and Ended.
  std::vector<Card> connect(const Card& mine);
  // By rank; nothing is exchanged with this rank itself. Throws Failure and Ended; that also if `ends`.
  void exchange(std::vector<Traffic>& traffic, const std::function<bool()>& ends);

 private:
  struct Progress;
  void listen();
  void accept_peers();
  [[nodiscard]] bool try_connect(int peer);
  [[nodiscard]] bool is_complete() const;
  void advance(int peer, Traffic& traffic, Progress& progress, int events);
  void send_some(int peer, Traffic& traffic, Progress& progress);
  void receive_some(int peer, Traffic& traffic, Progress& progress);
  void lose(int peer);

  std::string name_;
  int rank_;
  int size_;
  const Interrupt& interrupt_;
  int listener_ = -1;
  std::vector<int> peers_;  // descriptors; -1: not there (yet, or any more)
};

}  // namespace fake_nccl
