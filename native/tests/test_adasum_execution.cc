#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include "backend/native/adasum_execution.h"
#include "testing/check.h"
#include "tests/test_backend_world.h"

namespace hvd::testing {
namespace {

using Doubles = std::vector<double>;
using Kind = AdasumRound::Kind;

constexpr DType kDTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

Doubles joined(const Doubles& a, const Doubles& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  const double weight_a = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const double weight_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  Doubles result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = weight_a * a[i] + weight_b * b[i];
  return result;
}

// The ranks beyond a power of two first, then neighbors, then neighbors of these.
Doubles expected_of(std::vector<Doubles> values) {
  size_t power = 1;
  while (power * 2 <= values.size()) power *= 2;
  for (size_t rank = power; rank < values.size(); ++rank) {
    values[rank - power] = joined(values[rank - power], values[rank]);
  }
  for (; power > 1; power /= 2) {
    for (size_t i = 0; i < power / 2; ++i) values[i] = joined(values[2 * i], values[2 * i + 1]);
  }
  return values.front();
}

template <class T>
T narrowed(double value) {
  if constexpr (kIsHalf<T>) {
    return encode<T>(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Of float64 it is mostly that of the reference, which sums products one after the other.
template <class T>
double relative_error() {
  if constexpr (kIsHalf<T>) {
    return std::ldexp(1.0, -T::kFractionBits);
  } else {
    return std::is_same_v<T, float> ? 1e-6 : 1e-12;
  }
}

// What the ranks have in common is averaged, what they have not is added.
template <class T>
std::vector<T> random_values(Random& common, Random& own, size_t count) {
  std::vector<T> values(count);
  for (T& value : values) value = narrowed<T>(common.uniform() * 2 - 1 + own.uniform());
  return values;
}

template <class T>
std::vector<Tensors<T>> random_tensors(int size, const std::vector<size_t>& counts) {
  std::vector<Tensors<T>> all(static_cast<size_t>(size));
  Random own;
  for (Tensors<T>& tensors : all) {
    Random common;
    for (const size_t count : counts) tensors.add(random_values<T>(common, own, count));
  }
  return all;
}

struct Options {
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;
  uint32_t sequence = 1;
};

template <class T>
std::unique_ptr<Execution> start(BackendWorld& world, int rank, DType dtype, Tensors<T>& tensors,
                                 const std::vector<size_t>& which, const Options& options) {
  Batch batch = world.batch_of(rank, dtype, options.sequence);
  batch.prescale = options.prescale;
  batch.postscale = options.postscale;
  tensors.put_into(batch, which, options.in_place);
  return world.backend(rank).execute(Collective::kAdasum, std::move(batch));
}

template <class T>
void execute(BackendWorld& world, DType dtype, std::vector<Tensors<T>>& all, const Options& options) {
  std::vector<BackendWorld::Executions> executions(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<size_t> which(all[rank].inputs.size());
    std::iota(which.begin(), which.end(), size_t{0});
    executions[rank].push_back(start(world, static_cast<int>(rank), dtype, all[rank], which, options));
  }
  REQUIRE(world.run(executions));
}

// Whether `result` is the Adasum of what the ranks gave as tensor `index`.
template <class T>
bool is_right(const std::vector<T>& result, const std::vector<Tensors<T>>& given, size_t index,
              const Options& options) {
  std::vector<Doubles> values;
  for (const Tensors<T>& tensors : given) {
    Doubles& mine = values.emplace_back();
    for (const T& value : tensors.inputs[index]) mine.push_back(static_cast<double>(widen(value)) * options.prescale);
  }
  const Doubles expected = expected_of(std::move(values));
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value * options.postscale));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(widen(result[i])) - expected[i] * options.postscale;
    if (!(std::fabs(difference) <= relative_error<T>() * largest)) return false;
  }
  return true;
}

template <class T>
void check_against_reference(BackendWorld& world, DType dtype, const std::vector<size_t>& counts,
                             const Options& options) {
  const std::vector<Tensors<T>> given = random_tensors<T>(world.size(), counts);
  std::vector<Tensors<T>> all = given;
  execute(world, dtype, all, options);
  for (size_t index = 0; index < counts.size(); ++index) {
    const auto result_of = [&](size_t rank) {
      return options.in_place ? all[rank].inputs[index] : all[rank].outputs[index];
    };
    bool same = true;
    for (size_t rank = 1; rank < all.size(); ++rank) same = same && same_bits(result_of(0), result_of(rank));
    const bool right = is_right(result_of(0), given, index, options);
    if (same && right) continue;
    std::ostringstream text;
    text << name_of(dtype) << " of " << world.size() << " ranks, " << counts[index] << " elements, in place "
         << options.in_place << (right ? "" : ": the result is wrong")
         << (same ? "" : ": ranks have different results");
    report(__FILE__, __LINE__, text.str());
  }
}

TEST("adasum execution: every size of world, dtype and wire, several tensors, in place and not") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTinySockets}) {
    for (int size = 1; size <= 8; ++size) {
      if (kSanitized && size > 5) continue;
      BackendWorld world(size, wire);
      Options options;
      for (const DType dtype : kDTypes) {
        with_type(dtype, [&](auto element) {
          using T = decltype(element);
          if constexpr (kIsFloating<T>) {
            check_against_reference<T>(world, dtype, {7, 0, 1, 3000, 16'411, 5}, options);
          }
        });
        options.in_place = !options.in_place;
        ++options.sequence;
      }
    }
  }
}

TEST("adasum execution: prescale and postscale, also of one rank") {
  for (const int size : {1, 2, 3, 6}) {
    BackendWorld world(size);
    for (const bool in_place : {false, true}) {
      const Options options{.prescale = 0.3, .postscale = 5.0, .in_place = in_place};
      check_against_reference<Float16>(world, DType::kFloat16, {33, 9000}, options);
      check_against_reference<BFloat16>(world, DType::kBFloat16, {33, 9000}, options);
      check_against_reference<float>(world, DType::kFloat32, {33, 9000}, options);
      check_against_reference<double>(world, DType::kFloat64, {33, 9000}, options);
    }
  }
}

TEST("adasum execution: orthogonal tensors are added, equal ones averaged, to the bit") {
  for (int size = 1; size <= 8; ++size) {
    for (const DType dtype : kDTypes) {
      with_type(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (kIsFloating<T>) {
          std::vector<Tensors<T>> all(static_cast<size_t>(size));
          std::vector<T> sum;
          for (size_t i = 0; i < 24; ++i) sum.push_back(narrowed<T>(static_cast<double>(i % 8) * 1.5 - 3));
          for (size_t rank = 0; rank < all.size(); ++rank) {
            std::vector<T> part(24, narrowed<T>(0));
            for (size_t i = rank; i < part.size(); i += all.size()) part[i] = sum[i];
            all[rank].add(part);
            all[rank].add(sum);
          }
          BackendWorld world(size);
          execute(world, dtype, all, {});
          for (const Tensors<T>& tensors : all) {
            CHECK(same_bits(tensors.outputs[0], sum));
            CHECK(same_bits(tensors.outputs[1], sum));
          }
        }
      });
    }
  }
}

TEST("adasum execution: magnitudes at the ends of each dtype") {
  const auto check = [](DType dtype, auto element, const Doubles& magnitudes) {
    using T = decltype(element);
    for (const double magnitude : magnitudes) {
      std::vector<Tensors<T>> all(5);
      for (Tensors<T>& tensors : all) tensors.add(std::vector<T>(1003, narrowed<T>(magnitude)));
      BackendWorld world(5);
      execute(world, dtype, all, {});
      for (const Tensors<T>& tensors : all) CHECK(same_bits(tensors.outputs[0], tensors.inputs[0]));
    }
  };
  check(DType::kFloat16, Float16{}, {6.2e-5, 255, 65'504});
  check(DType::kBFloat16, BFloat16{}, {1.2e-38, 1.8e19, 3e38});
  check(DType::kFloat32, float{}, {1.2e-38, 1.8e19, 3e38});
  check(DType::kFloat64, double{}, {1e-70, 1.3e154, 1.7e308});
}

TEST("adasum execution: a tensor has the same result alone and beside others") {
  const std::vector<size_t> counts{1001, 3, 20'003};
  for (const int size : {2, 3, 5}) {
    std::vector<Tensors<float>> together = random_tensors<float>(size, counts);
    std::vector<Tensors<float>> alone = together;
    BackendWorld world(size);
    execute(world, DType::kFloat32, together, {});
    for (size_t index = 0; index < counts.size(); ++index) {
      std::vector<BackendWorld::Executions> executions(alone.size());
      for (int rank = 0; rank < size; ++rank) {
        const auto place = static_cast<size_t>(rank);
        const Options options{.sequence = static_cast<uint32_t>(10 + index)};
        executions[place].push_back(start(world, rank, DType::kFloat32, alone[place], {index}, options));
      }
      REQUIRE(world.run(executions));
      CHECK(same_bits(alone[0].outputs[index], together[0].outputs[index]));
    }
  }
}

// The batches take turns on the same links, each rank in an order of its own.
TEST("adasum execution: many at a time do not mix, also with allreduces between them") {
  const std::vector<size_t> counts{5000, 700, 90'001, 4, 0};
  for (const Wire wire : {Wire::kMemory, Wire::kTinySockets}) {
    for (const int size : {2, 4, 7}) {
      if (kSanitized && size == 7) continue;
      const std::vector<Tensors<float>> given = random_tensors<float>(size, counts);
      std::vector<Tensors<float>> all = given;
      std::vector<Tensors<float>> sums = given;
      BackendWorld world(size, wire);
      std::vector<BackendWorld::Executions> executions(all.size());
      for (int rank = 0; rank < size; ++rank) {
        const auto place = static_cast<size_t>(rank);
        for (size_t index = 0; index < counts.size(); ++index) {
          const auto sequence = static_cast<uint32_t>(2 * index);
          executions[place].push_back(start(world, rank, DType::kFloat32, all[place], {index}, {.sequence = sequence}));
          Batch batch = world.batch_of(rank, DType::kFloat32, sequence + 1);
          sums[place].put_into(batch, {index});
          executions[place].push_back(world.backend(rank).execute(Collective::kAllreduce, std::move(batch)));
        }
      }
      REQUIRE(world.run(executions));
      for (size_t index = 0; index < counts.size(); ++index) {
        CHECK(is_right(all[0].outputs[index], given, index, {}));
        for (const Tensors<float>& tensors : all) CHECK(same_bits(tensors.outputs[index], all[0].outputs[index]));
        for (const Tensors<float>& tensors : sums) CHECK(same_bits(tensors.outputs[index], sums[0].outputs[index]));
      }
    }
  }
}

TEST("adasum execution: tensors without elements need nobody") {
  std::vector<Tensors<float>> all = random_tensors<float>(3, {0, 0});
  BackendWorld world(3);
  std::vector<BackendWorld::Executions> executions(3);
  executions[1].push_back(start(world, 1, DType::kFloat32, all[1], {0, 1}, {}));
  CHECK(world.run(executions));
}

// Starts a world's ranks one after the other and notes for whom each waits.
TEST("adasum execution: a rank waits for the partner of its round, and for nobody else") {
  const std::vector<std::vector<std::vector<int>>> waits_for = {
      // after the start of 0, of 1, ...: what ranks 0, 1, ... wait for; -1: is done
      {{4}, {}, {}, {}, {}},    {{4}, {0}, {}, {}, {}},         {{4}, {0}, {3}, {}, {}},
      {{4}, {0}, {0}, {1}, {}}, {{-1}, {-1}, {-1}, {-1}, {-1}},
  };
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    std::vector<Tensors<float>> all = random_tensors<float>(5, {200});
    BackendWorld world(5, wire);
    std::vector<BackendWorld::Executions> executions(5);
    for (size_t started = 0; started < 5; ++started) {
      executions[started].push_back(start(world, static_cast<int>(started), DType::kFloat32, all[started], {0}, {}));
      CHECK_EQ(world.run(executions), started == 4);
      for (size_t rank = 0; rank <= started; ++rank) {
        Execution& execution = *executions[rank].front();
        std::vector<int> waiting;
        if (execution.done()) waiting.push_back(-1);
        for (int peer = 0; peer < 5 && !execution.done(); ++peer) {
          if (static_cast<size_t>(peer) != rank && execution.waits_for(peer)) waiting.push_back(peer);
        }
        CHECK(waiting == waits_for[started][rank]);
      }
    }
  }
}

TEST("adasum rounds: partners meet, and no two rounds share a direction between two ranks") {
  CHECK(adasum_rounds(0, 1).empty());
  CHECK(adasum_rounds(4, 5) == (std::vector<AdasumRound>{{0, Kind::kGive}, {0, Kind::kReplace}}));
  CHECK(adasum_rounds(0, 5) ==
        (std::vector<AdasumRound>{{4, Kind::kTake}, {1, Kind::kExchange}, {2, Kind::kExchange}, {4, Kind::kGive}}));
  for (int size = 1; size <= 70; ++size) {
    std::set<std::pair<int, int>> sent;  // (from, to)
    std::set<std::pair<int, int>> received;
    for (int rank = 0; rank < size; ++rank) {
      for (const AdasumRound& round : adasum_rounds(rank, size)) {
        const bool gives = round.kind == Kind::kGive || round.kind == Kind::kExchange;
        if (gives) CHECK(sent.emplace(rank, round.partner).second);
        if (round.kind != Kind::kGive) CHECK(received.emplace(round.partner, rank).second);
        CHECK(round.partner != rank && round.partner >= 0 && round.partner < size);
      }
    }
    CHECK(sent == received);
  }
}

}  // namespace
}  // namespace hvd::testing
