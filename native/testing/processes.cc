#include "testing/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

namespace hvd::testing {
namespace {

// Maps the peers' memory as a rank does that got descriptors only.
void open_segments(TransportParts& parts) {
  for (LocalPeer& peer : parts.local_peers) peer.segment = Segment::open(peer.segment->fd(), parts.num_local);
}

void run_child(TransportParts parts, const EngineOptions& options, const Processes::Body& body, int lines) {
  const Processes::Say say = [lines](const std::string& line) {
    const std::string text = line + "\n";
    [[maybe_unused]] const auto written = write(lines, text.data(), text.size());
  };
  try {
    const int rank = parts.rank;
    Engine engine(std::move(parts), options);
    body(rank, engine, say);
  } catch (const std::exception& error) {
    say(std::string("exception: ") + error.what());
  }
}

}  // namespace

Processes::Processes(int size, Wire wire, const EngineOptions& options, const Body& body) {
  std::vector<TransportParts> all = make_transports(size, wire);
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> pipe_fds{};
    if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
    Child& child = children_.emplace_back();
    child.lines = Fd(pipe_fds[0]);
    Fd writer(pipe_fds[1]);
    child.pid = fork();
    if (child.pid < 0) throw_errno("cannot fork");
    if (child.pid > 0) continue;
    TransportParts mine = std::move(all[static_cast<size_t>(rank)]);
    open_segments(mine);
    all.clear();  // or the others would not see the end of a rank whose descriptors live on here
    for (Child& other : children_) other.lines.reset();
    run_child(std::move(mine), options, body, writer.get());
    _exit(0);
  }
}

Processes::~Processes() {
  for (const Child& child : children_) kill(child.pid, SIGKILL);
  for (const Child& child : children_) waitpid(child.pid, nullptr, 0);
}

void Processes::signal(int rank, int number) { kill(children_[static_cast<size_t>(rank)].pid, number); }

std::string Processes::read_line(int rank, Duration timeout) {
  Child& child = children_[static_cast<size_t>(rank)];
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  size_t end = 0;
  while ((end = child.received.find('\n')) == std::string::npos) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd query{child.lines.get(), POLLIN, 0};
    if (left.count() <= 0 || poll(&query, 1, static_cast<int>(left.count())) <= 0) return {};
    std::array<char, 4096> chunk{};
    const ssize_t got = read(child.lines.get(), chunk.data(), chunk.size());
    if (got <= 0) return {};
    child.received.append(chunk.data(), static_cast<size_t>(got));
  }
  std::string line = child.received.substr(0, end);
  child.received.erase(0, end + 1);
  return line;
}

}  // namespace hvd::testing
