#include "testing/world.h"

#include <sys/socket.h>

#include <exception>
#include <mutex>
#include <thread>

namespace hvd::testing {

std::vector<TransportParts> make_transports(int size, Wire wire) {
  if (wire == Wire::kMemory) return make_memory_transports(size);
  std::vector<TransportParts> parts = make_socket_transports(size);
  if (wire == Wire::kSockets) return parts;
  for (TransportParts& rank_parts : parts) {
    for (const RemotePeer& peer : rank_parts.remote_peers) {
      for (const int fd : {peer.control.get(), peer.data.get()}) {
        const int bytes = 4096;
        if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) != 0) throw_errno("cannot set SO_SNDBUF");
      }
    }
  }
  return parts;
}

World::World(int size, const EngineOptions& options, Wire wire) {
  auto parts = make_transports(size, wire);
  for (TransportParts& rank_parts : parts) {
    std::vector<Fd>& sockets = sockets_.emplace_back();
    for (const LocalPeer& peer : rank_parts.local_peers) sockets.emplace_back(dup(peer.liveness.get()));
    for (const RemotePeer& peer : rank_parts.remote_peers) {
      sockets.emplace_back(dup(peer.control.get()));
      sockets.emplace_back(dup(peer.data.get()));
    }
    engines_.push_back(std::make_unique<Engine>(std::move(rank_parts), options));
  }
}

void World::kill(int rank) {
  for (const Fd& socket : sockets_[static_cast<size_t>(rank)]) shutdown(socket.get(), SHUT_RDWR);
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
