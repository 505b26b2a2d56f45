#include "testing/world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <exception>
#include <mutex>
#include <thread>

namespace hvd::testing {

ConnectedPair make_tcp_pair() {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* where = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (bind(listener.get(), where, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), where, &length) != 0 || connect(client.get(), where, length) != 0) {
    throw_errno("cannot connect over the loopback device");
  }
  Fd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.valid()) throw_errno("cannot accept over the loopback device");
  for (const int fd : {client.get(), server.get()}) {
    const int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) throw_errno("cannot set TCP_NODELAY");
  }
  return {std::move(client), std::move(server)};
}

std::vector<TransportParts> make_transports(int size, Wire wire) {
  if (wire == Wire::kMemory || wire == Wire::kMpi) return make_memory_transports(size);
  if (wire == Wire::kTcp) return make_socket_transports(size, {}, 3, make_tcp_pair);
  constexpr int kNumHosts = 3;
  std::vector<int> hosts;
  for (int rank = 0; wire == Wire::kHosts && rank < size; ++rank) hosts.push_back(rank % kNumHosts);
  std::vector<TransportParts> parts = make_socket_transports(size, hosts);
  if (wire != Wire::kTinySockets) return parts;
  for (TransportParts& rank_parts : parts) {
    for (const RemotePeer& peer : rank_parts.remote_peers) {
      const auto shrink = [](const Fd& socket) {
        const int bytes = 4096;
        if (setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) != 0) {
          throw_errno("cannot set SO_SNDBUF");
        }
      };
      shrink(peer.control);
      for (const Fd& socket : peer.data) shrink(socket);
    }
  }
  return parts;
}

World::World(int size, const EngineOptions& options, Wire wire, std::optional<int> victim,
             const std::function<void(int, EngineOptions&)>& adapt) {
  auto parts = make_transports(size, wire);
  if (victim) {
    const TransportParts& its = parts[static_cast<size_t>(*victim)];
    for (const LocalPeer& peer : its.local_peers) victims_sockets_.emplace_back(dup(peer.liveness.get()));
    for (const RemotePeer& peer : its.remote_peers) {
      victims_sockets_.emplace_back(dup(peer.control.get()));
      for (const Fd& socket : peer.data) victims_sockets_.emplace_back(dup(socket.get()));
    }
  }
  if (wire == Wire::kMpi) start_mpi(size);
  for (TransportParts& rank_parts : parts) {
    EngineOptions its = options;
    const int rank = rank_parts.rank;
    if (adapt) adapt(rank, its);
    if (mpi_) its.mpi = std::make_shared<mpi::MpiWorld>(mpi_processes_[static_cast<size_t>(rank)], rank, size);
    engines_.push_back(std::make_unique<Engine>(std::move(rank_parts), its));
  }
}

void World::start_mpi(int size) {
  mpi_ = std::make_unique<FakeMpi>(size);
  const mpi::Library library{FakeMpi::functions(), "fake", "fake"};
  for (int rank = 0; rank < size; ++rank) {
    const auto process = std::make_shared<mpi::MpiProcess>(library, true);
    if (!process->wait(std::chrono::seconds(30))) throw Error(ErrorKind::kInternal, "the fake MPI does not begin");
    mpi_processes_.insert(mpi_processes_.begin(), process);
  }
}

void World::kill_victim() {
  for (const Fd& socket : victims_sockets_) shutdown(socket.get(), SHUT_RDWR);
}

void World::run(const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

void submit_to(Engine& engine, const std::shared_ptr<Operation>& operation, bool waits_next) {
  operation->request.waits_next = waits_next;
  engine.submit(operation);
}

void run_operation(Engine& engine, const std::shared_ptr<Operation>& operation) {
  submit_to(engine, operation, true);
  if (!engine.wait(*operation, std::chrono::seconds(30))) {
    throw Error(ErrorKind::kInternal, operation->spec.name + " did not end within 30 s");
  }
  if (operation->error()) throw Error(*operation->error());
}

std::shared_ptr<Operation> make_operation(OpKind kind, const std::string& name, std::vector<Buffer> inputs,
                                          std::vector<Buffer> outputs) {
  return std::make_shared<Operation>(
      SubmitRequest{.kind = kind, .name = name, .inputs = std::move(inputs), .outputs = std::move(outputs)});
}

}  // namespace hvd::testing
