// Every algorithm on ranks of several hosts that are threads or processes: results, and the loss of a rank.
#include <csignal>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/processes.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(kSanitized ? 20 : 10);
constexpr Duration kPrompt = std::chrono::seconds(2);

constexpr std::optional<Algorithm> kAlgorithms[] = {
    std::nullopt,         Algorithm::kExchange, Algorithm::kDirect,       Algorithm::kRing,
    Algorithm::kDoubling, Algorithm::kTrees,    Algorithm::kHierarchical, Algorithm::kStars};

std::string name_of(std::optional<Algorithm> algorithm) {
  constexpr const char* kNames[] = {"exchange", "direct", "ring", "doubling", "trees", "hierarchical", "stars"};
  return algorithm ? kNames[static_cast<size_t>(*algorithm)] : "auto";
}

EngineOptions options_of(std::optional<Algorithm> algorithm, int size) {
  EngineOptions options;
  options.plans.allreduce = algorithm;
  for (int rank = 0; rank < size; ++rank) options.rank_names.push_back("host-" + std::to_string(rank));
  return options;
}

void check_allreduce(Engine& engine, const std::string& name, DType dtype, ReduceOp op, int64_t count, bool in_place) {
  Array input = samples(dtype, op, engine.rank(), {count});
  Array output(dtype, {count});
  Array& result = in_place ? input : output;
  run_operation(engine, make_allreduce(name, {input.view()}, {result.view()}, op));
  for (int64_t i = 0, end = result.num_distinct(kPeriod); i < end; ++i) {
    if (result.get(i) == reduced(dtype, op, engine.size(), i % kPeriod)) continue;
    report(__FILE__, __LINE__,
           name + " of " + std::to_string(count) + ": element " + std::to_string(i) + " on rank " +
               std::to_string(engine.rank()) + " is " + std::to_string(result.get(i)));
    throw Fatal(name);
  }
}

TEST("engine hosts: each algorithm gives the right result") {
  for (const Wire wire : {Wire::kHosts, Wire::kSockets}) {
    for (const int size : {3, 5, 8}) {
      if (size != 5 && (kSanitized || wire == Wire::kSockets)) continue;
      for (const std::optional<Algorithm>& algorithm : kAlgorithms) {
        World world(size, options_of(algorithm, size), wire);
        world.run([&](int rank) {
          for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64, DType::kUInt8}) {
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
              for (const int64_t count : {1, 1001, 60'001}) {
                const std::string name = name_of(algorithm) + std::string(hvd::name_of(dtype)) +
                                         std::string(hvd::name_of(op)) + std::to_string(count);
                check_allreduce(world.engine(rank), name, dtype, op, count, count == 1001);
              }
            }
          }
        });
      }
    }
  }
}

// Scaling happens once, whatever way a value takes.
TEST("engine hosts: factors and averages with each algorithm") {
  for (const std::optional<Algorithm>& algorithm : kAlgorithms) {
    const int size = 5;
    World world(size, options_of(algorithm, size), Wire::kHosts);
    world.run([&](int rank) {
      std::vector<double> values(3000, rank + 1.0);
      const auto operation = make_allreduce("scaled", {view(values)}, {view(values)}, ReduceOp::kAverage);
      operation->request.prescale = 2.0;
      operation->request.postscale = 0.5;
      run_operation(world.engine(rank), operation);
      CHECK(std::all_of(values.begin(), values.end(), [](double value) { return std::abs(value - 3.0) < 1e-12; }));
    });
  }
}

TEST("engine hosts: the other collectives") {
  for (const int size : {4, 7}) {
    World world(size, options_of(std::nullopt, size), Wire::kHosts);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      for (const int64_t count : {int64_t{3}, int64_t{50'000}}) {
        const std::string suffix = std::to_string(count);
        for (const int root : {0, size - 1}) {
          Array array = samples(DType::kInt32, ReduceOp::kSum, rank, {count});
          const auto broadcast =
              make_operation(OpKind::kBroadcast, "b" + std::to_string(root) + suffix, {array.view()}, {array.view()});
          broadcast->request.root = root;
          run_operation(engine, broadcast);
          CHECK(array.bytes() == samples(DType::kInt32, ReduceOp::kSum, root, {count}).bytes());
        }
        Array mine = samples(DType::kInt32, ReduceOp::kSum, rank, {count});
        const auto allgather = make_operation(OpKind::kAllgather, "g" + suffix, {mine.view()}, {});
        run_operation(engine, allgather);
        for (int owner = 0; owner < size; ++owner) {
          const std::byte* data = allgather->result.arrays.at(0).data.get();
          CHECK_EQ(element(DType::kInt32, data, owner * count + 1), sample(DType::kInt32, ReduceOp::kSum, owner, 1));
        }
        std::vector<int64_t> whole(static_cast<size_t>(count * size), rank + 1);
        std::vector<int64_t> share(static_cast<size_t>(count));
        run_operation(engine, make_operation(OpKind::kReducescatter, "r" + suffix, {view(whole)}, {view(share)}));
        const int64_t sum = int64_t{size} * (size + 1) / 2;
        CHECK(std::all_of(share.begin(), share.end(), [&](int64_t value) { return value == sum; }));
      }
    });
  }
}

TEST("engine hosts: the loss of a rank in the middle of each algorithm is named by all others") {
  for (const std::optional<Algorithm>& algorithm : kAlgorithms) {
    for (const int victim : {0, 4}) {
      if (kSanitized && victim == 0) continue;
      const int size = 5;
      Processes ranks(size, Wire::kHosts, options_of(algorithm, size),
                      [&](int rank, Engine& engine, const Processes::Say& say) {
                        std::vector<float> values(400'000, 1.0F);
                        try {
                          for (int round = 0;; ++round) {
                            const std::string name = "x" + std::to_string(round % 3);
                            run_operation(engine, make_allreduce(name, {view(values)}, {view(values)}, ReduceOp::kMax));
                            if (round == 0) say("works");
                          }
                        } catch (const Error& error) {
                          say(std::string(error.kind() == ErrorKind::kPeerLost ? "lost: " : "other: ") + error.what());
                        }
                        static_cast<void>(rank);
                      });
      for (int rank = 0; rank < size; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "works");
      ranks.signal(victim, SIGKILL);
      const auto start = std::chrono::steady_clock::now();
      const std::string expected = "rank " + std::to_string(victim) + " (host-" + std::to_string(victim) + ") was lost";
      for (int rank = 0; rank < size; ++rank) {
        if (rank == victim) continue;
        const std::string line = ranks.read_line(rank, kPatience);
        if (contains(line, "lost: ") && contains(line, expected)) continue;
        report(__FILE__, __LINE__, name_of(algorithm) + ", rank " + std::to_string(rank) + ": \"" + line + "\"");
      }
      CHECK(std::chrono::steady_clock::now() - start < kPrompt);
    }
  }
}

}  // namespace
}  // namespace hvd::testing
