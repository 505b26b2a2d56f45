// N ranks as threads of one process: engines over the memory transport, or over sockets, without a launcher.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/mpi/mpi_process.h"
#include "engine/engine.h"
#include "testing/fake_mpi.h"

namespace hvd::testing {

// kTinySockets: sockets whose buffers hold a few kilobytes, so that writes come to a halt in the middle of frames.
// kHosts: ranks 0, 3, 6 ... share a host, and 1, 4, 7 ..., and 2, 5, 8 ...; sockets between hosts.
// kTcp: connections over the loopback device, as between hosts.
// kMpi: memory, and data move over a fake MPI, which knows the ranks in the reverse order.
enum class Wire : uint8_t { kMemory, kSockets, kTinySockets, kHosts, kTcp, kMpi };

// A TCP connection of this process with itself.
[[nodiscard]] ConnectedPair make_tcp_pair();

[[nodiscard]] std::vector<TransportParts> make_transports(int size, Wire wire);

class World {
 public:
  // `victim`: the rank that kill_victim() kills. Second descriptors of its connections are held, so that these stay
  // open when an engine closes; other worlds have none.
  // `adapt` changes the options of single ranks.
  explicit World(int size, const EngineOptions& options = {}, Wire wire = Wire::kMemory, std::optional<int> victim = {},
                 const std::function<void(int rank, EngineOptions&)>& adapt = {});

  [[nodiscard]] int size() const { return static_cast<int>(engines_.size()); }
  [[nodiscard]] Engine& engine(int rank) { return *engines_[static_cast<size_t>(rank)]; }
  // Of a world over kMpi.
  [[nodiscard]] FakeMpi& mpi() { return *mpi_; }
  [[nodiscard]] mpi::MpiProcess& mpi_process(int rank) { return *mpi_processes_[static_cast<size_t>(rank)]; }
  // Breaks all connections of the victim without a goodbye, as the end of its process does.
  void kill_victim();

  // Runs `body(rank)` on a thread for each rank and joins them. The first exception is thrown again.
  void run(const std::function<void(int rank)>& body);

 private:
  void start_mpi(int size);

  std::unique_ptr<FakeMpi> mpi_;
  std::vector<std::shared_ptr<mpi::MpiProcess>> mpi_processes_;
  std::vector<Fd> victims_sockets_;  // second descriptors of its connections
  std::vector<std::unique_ptr<Engine>> engines_;
};

// `waits_next`: the caller waits at once.
void submit_to(Engine& engine, const std::shared_ptr<Operation>& operation, bool waits_next);

// Submits and waits; throws Error as a caller would see it. Gives up after 30 s.
void run_operation(Engine& engine, const std::shared_ptr<Operation>& operation);

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kUInt8;
}

template <typename T>
Buffer view(std::vector<T>& values, Shape shape = {}) {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  return {reinterpret_cast<std::byte*>(values.data()), dtype_of<T>(), std::move(shape)};
}

std::shared_ptr<Operation> make_operation(OpKind kind, const std::string& name, std::vector<Buffer> inputs,
                                          std::vector<Buffer> outputs);

}  // namespace hvd::testing
