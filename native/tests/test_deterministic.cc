#include <algorithm>
#include <sstream>

#include "testing/check.h"
#include "tests/test_backend_world.h"

namespace hvd::testing {
namespace {

// Which tensors travel together, in the order of their batches.
using Composition = std::vector<std::vector<size_t>>;

// Odd, so that tensors start at odd places of frames, shares and vectors, and with rests of all lengths.
const std::vector<size_t> kCounts{1, 7, 33, 1001, 20'011, 5, 4099};
const std::vector<Composition> kCompositions{{{0}, {1}, {2}, {3}, {4}, {5}, {6}},
                                             {{0, 1, 2, 3, 4, 5, 6}},
                                             {{6, 5, 4, 3, 2, 1, 0}},
                                             {{0, 1, 2, 5}, {6, 3}, {4}},
                                             {{5, 4, 0}, {1, 6, 2, 3}}};

struct Factors {
  double prescale;
  double postscale;
};

template <class T>
using Results = std::vector<std::vector<T>>;

template <class T>
std::vector<Tensors<T>> make_tensors(int size) {
  std::vector<Tensors<T>> all(static_cast<size_t>(size));
  Random random;
  for (Tensors<T>& tensors : all) {
    for (const size_t count : kCounts) {
      std::vector<T> values(count);
      for (T& value : values) value = random_element<T>(random);
      tensors.add(std::move(values));
    }
  }
  return all;
}

// Allreduces all tensors, batch after batch; checks that the ranks agree to the bit.
template <class T>
Results<T> results_of(BackendWorld& world, DType dtype, std::vector<Tensors<T>> all, const Composition& composition,
                      const Factors& factors) {
  uint32_t sequence = 0;
  for (const std::vector<size_t>& which : composition) {
    std::vector<BackendWorld::Executions> executions(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      Batch batch = world.batch_of(static_cast<int>(rank), dtype, sequence);
      batch.prescale = factors.prescale;
      batch.postscale = factors.postscale;
      all[rank].put_into(batch, which);
      executions[rank].push_back(
          world.backend(static_cast<int>(rank)).execute(Collective::kAllreduce, std::move(batch)));
    }
    REQUIRE(world.run(executions));
    ++sequence;
  }
  for (const Tensors<T>& tensors : all) {
    for (size_t i = 0; i < kCounts.size(); ++i) CHECK(same_bits(tensors.outputs[i], all[0].outputs[i]));
  }
  return all[0].outputs;
}

template <class T>
bool equal(const Results<T>& a, const Results<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits<T>);
}

// All compositions on all instruction sets.
template <class T>
void check_compositions(BackendWorld& world, DType dtype, const EachIsa& isas, const Factors& factors) {
  const std::vector<Tensors<T>> given = make_tensors<T>(world.size());
  const Results<T> expected = results_of(world, dtype, given, kCompositions.front(), factors);
  for (const std::string_view isa : isas.names()) {
    select_kernel_isa(isa);
    for (size_t i = 0; i < kCompositions.size(); ++i) {
      if (equal(results_of(world, dtype, given, kCompositions[i], factors), expected)) continue;
      std::ostringstream text;
      text << name_of(dtype) << " of " << world.size() << " ranks on " << isa << ", factors " << factors.prescale
           << " and " << factors.postscale << ": composition " << i << " has another result";
      report(__FILE__, __LINE__, text.str());
    }
  }
}

// Two to seven operands: more than the kernels read in one pass. Short batches are exchanged, long ones are not.
TEST("deterministic: results do not depend on what travels together, nor on the instruction set") {
  const EachIsa isas;
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kHosts}) {
    for (const int size : {2, 3, 5, 7}) {
      if (kSanitized && size > 5) continue;
      BackendWorld world(size, wire, true);
      for (const Factors& factors : {Factors{1.0, 1.0}, Factors{0.3, 1.0 / 7}, Factors{1.0, 0.25}}) {
        check_compositions<float>(world, DType::kFloat32, isas, factors);
        check_compositions<Float16>(world, DType::kFloat16, isas, factors);
        check_compositions<BFloat16>(world, DType::kBFloat16, isas, factors);
      }
    }
  }
}

// So that the case above would notice.
TEST("deterministic: without the option a ring reduces in an order that depends on the batch") {
  BackendWorld world(5, Wire::kSockets, false, {.allreduce = Algorithm::kRing, .costs = {}});
  const std::vector<Tensors<float>> given = make_tensors<float>(world.size());
  const Results<float> alone = results_of(world, DType::kFloat32, given, kCompositions[0], {1.0, 1.0});
  const Results<float> together = results_of(world, DType::kFloat32, given, kCompositions[1], {1.0, 1.0});
  CHECK(!equal(alone, together));
}

TEST("deterministic: reducescatter reduces in the order of the ranks") {
  const int size = 5;
  std::vector<Results<float>> outputs;
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kHosts}) {
    BackendWorld world(size, wire, true);
    std::vector<Tensors<float>> all = make_tensors<float>(size);
    std::vector<BackendWorld::Executions> executions(size);
    Results<float> mine(size);
    const std::vector<int64_t> counts{4003, 4002, 4002, 4002, 4002};
    for (size_t rank = 0; rank < size; ++rank) {
      mine[rank].resize(static_cast<size_t>(counts[rank]));
      Batch batch = world.batch_of(static_cast<int>(rank), DType::kFloat32, 0);
      batch.inputs = {Tensors<float>::extent_of(all[rank].inputs[4])};
      batch.outputs = {Tensors<float>::extent_of(mine[rank])};
      batch.counts = counts;
      executions[rank].push_back(
          world.backend(static_cast<int>(rank)).execute(Collective::kReducescatter, std::move(batch)));
    }
    REQUIRE(world.run(executions));
    outputs.push_back(mine);
  }
  CHECK(equal(outputs[0], outputs[1]));
  CHECK(equal(outputs[0], outputs[2]));
}

}  // namespace
}  // namespace hvd::testing
