// Backends of all ranks of a world without engines. One thread takes turns between the ranks, in an order that repeats,
// so a run that stands still is seen without a clock.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/native/native_backend.h"
#include "testing/world.h"
#include "tests/test_reduce_reference.h"

namespace hvd::testing {

class BackendWorld {
 public:
  using Executions = std::vector<std::unique_ptr<Execution>>;  // of one rank

  explicit BackendWorld(int size, Wire wire = Wire::kMemory, bool deterministic = false,
                        const PlanOptions& plans = {}) {
    for (TransportParts& parts : make_transports(size, wire)) {
      transports_.push_back(std::make_unique<Transport>(std::move(parts)));
      backends_.push_back(std::make_unique<NativeBackend>(*transports_.back(), deterministic, plans));
      orders_.emplace_back();
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(backends_.size()); }
  [[nodiscard]] Backend& backend(int rank) { return *backends_[static_cast<size_t>(rank)]; }

  // A batch of all ranks that has no memory yet.
  [[nodiscard]] Batch batch_of(int rank, DType dtype, uint32_t sequence) const {
    Batch batch;
    batch.sequence = sequence;
    for (int member = 0; member < size(); ++member) batch.members.push_back(member);
    batch.set_rank = rank;
    batch.dtype = dtype;
    return batch;
  }

  // Goes on until nothing moves any more; returns whether all executions of all ranks are done. Ranks without
  // executions take no turns.
  bool run(std::vector<Executions>& all) {
    const int most_idle_turns = 1000 * size();  // a frame may need many turns through a tiny socket
    for (int idle = 0; idle < most_idle_turns && !all_done(all); ++idle) {
      const auto rank = static_cast<size_t>(random_.bits() % all.size());
      if (take_turn(rank, all[rank])) idle = 0;
    }
    return all_done(all);
  }

  static bool all_done(const std::vector<Executions>& all) {
    return std::all_of(all.begin(), all.end(), [](const Executions& mine) {
      return std::all_of(mine.begin(), mine.end(), [](const auto& execution) { return execution->done(); });
    });
  }

  // Returns whether anything moved.
  bool take_turn(size_t rank, Executions& mine) {
    Transport& transport = *transports_[rank];
    if (mine.empty()) return false;
    transport.flush();
    transport.poll_data();
    bool progressed = false;
    const size_t first = static_cast<size_t>(orders_[rank].bits() % mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      Execution& execution = *mine[(first + i) % mine.size()];
      progressed = (!execution.done() && execution.advance()) || progressed;
    }
    return progressed || transport.set_aside();
  }

 private:
  Random random_;
  std::vector<Random> orders_;  // by rank: turns may be taken on several threads
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

// The tensors of one rank, and their results.
template <class T>
struct Tensors {
  std::vector<std::vector<T>> inputs;
  std::vector<std::vector<T>> outputs;

  void add(std::vector<T> values) {
    outputs.emplace_back(values.size());
    inputs.push_back(std::move(values));
  }

  // Adds these tensors to a batch, in this order.
  void put_into(Batch& batch, const std::vector<size_t>& which, bool in_place = false) {
    for (const size_t i : which) {
      auto& output = in_place ? inputs[i] : outputs[i];
      batch.inputs.push_back(extent_of(inputs[i]));
      batch.outputs.push_back(extent_of(output));
    }
  }

  static Extent extent_of(std::vector<T>& values) {
    return {reinterpret_cast<std::byte*>(values.data()), static_cast<int64_t>(values.size())};
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace hvd::testing
