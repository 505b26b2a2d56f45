#include "testing/world.h"

#include <sys/socket.h>

#include <exception>
#include <mutex>
#include <thread>

namespace hvd::testing {

std::vector<TransportParts> make_transports(int size, Wire wire) {
  if (wire == Wire::kMemory) return make_memory_transports(size);
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

World::World(int size, const EngineOptions& options, Wire wire, std::optional<int> victim) {
  auto parts = make_transports(size, wire);
  if (victim) {
    const TransportParts& its = parts[static_cast<size_t>(*victim)];
    for (const LocalPeer& peer : its.local_peers) victims_sockets_.emplace_back(dup(peer.liveness.get()));
    for (const RemotePeer& peer : its.remote_peers) {
      victims_sockets_.emplace_back(dup(peer.control.get()));
      for (const Fd& socket : peer.data) victims_sockets_.emplace_back(dup(socket.get()));
    }
  }
  for (TransportParts& rank_parts : parts) {
    engines_.push_back(std::make_unique<Engine>(std::move(rank_parts), options));
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

void run_operation(Engine& engine, const std::shared_ptr<Operation>& operation) {
  engine.submit(operation, true);
  if (!engine.wait(*operation, std::chrono::seconds(30))) {
    throw Error(ErrorKind::kInternal, operation->spec.name + " did not end within 30 s");
  }
  if (operation->error()) throw Error(*operation->error());
}

std::shared_ptr<Operation> make_operation(OpKind kind, const std::string& name, std::vector<Buffer> inputs,
                                          std::vector<Buffer> outputs) {
  auto operation = std::make_shared<Operation>();
  operation->spec.kind = kind;
  operation->spec.name = name;
  operation->inputs = std::move(inputs);
  operation->outputs = std::move(outputs);
  return operation;
}

}  // namespace hvd::testing
