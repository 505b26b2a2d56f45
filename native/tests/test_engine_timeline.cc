#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "test_timeline.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

struct TemporaryFile {
  TemporaryFile() {
    static int number = 0;
    path = std::filesystem::temp_directory_path() /
           ("hvd-timeline-" + std::to_string(getpid()) + "-" + std::to_string(number++) + ".json");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path); }
  [[nodiscard]] std::string text() const {
    std::ifstream file(path);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  std::filesystem::path path;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void reduce(Engine& engine, const std::string& name, size_t count) {
  std::vector<float> values(count, 1.0F);
  run_operation(engine, make_operation(OpKind::kAllreduce, name, {view(values)}, {view(values)}));
}

TEST("engine timeline: all ranks are in one file, with their phases, when it has been stopped") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    TemporaryFile first;
    TemporaryFile second;
    World world(3, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      reduce(engine, "allreduce.before", 10);
      engine.start_timeline(first.path, true);
      run_operation(engine, make_operation(OpKind::kBarrier, "barrier", {}, {}));
      for (const size_t count : {size_t{3}, size_t{50000}}) reduce(engine, "allreduce.x", count);
      run_operation(engine, make_operation(OpKind::kBarrier, "barrier", {}, {}));  // all have ended theirs
      engine.stop_timeline();
      run_operation(engine, make_operation(OpKind::kBarrier, "barrier", {}, {}));
      engine.start_timeline(second.path, false);
      engine.start_timeline(second.path, false);
      run_operation(engine, make_operation(OpKind::kBarrier, "barrier", {}, {}));
      reduce(engine, "allreduce.y", 5);
    });
    world.run([&](int rank) { world.engine(rank).close("done"); });
    const std::string text = first.text();
    CHECK(RecordParser::parse(text).has_value());
    CHECK(text.find("start_time_since_epoch_in_micros") != std::string::npos);
    CHECK(text.find("CYCLE_START") != std::string::npos);
    CHECK(text.find("allreduce.before") == std::string::npos);
    CHECK_EQ(count_of(text, "\"allreduce.x\""), 3U);  // a line for each rank
    CHECK_EQ(count_of(text, "\"NEGOTIATE_ALLREDUCE\""), 6U);
    CHECK_EQ(count_of(text, "\"ALLREDUCE\""), 6U);
    CHECK_EQ(count_of(text, "\"NATIVE_ALLREDUCE\""), 3U);
    CHECK_EQ(count_of(text, "[50000]"), 3U);
    CHECK(RecordParser::parse(second.text()).has_value());
    CHECK_EQ(count_of(second.text(), "\"allreduce.y\""), 3U);
    CHECK_EQ(count_of(second.text(), "CYCLE_START"), 0U);
  }
}

TEST("engine timeline: what happened is in the file soon, while the job goes on") {
  TemporaryFile file;
  World world(2);
  world.engine(0).start_timeline(file.path, false);
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.x", 3); });
  Operation nobodys;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count_of(file.text(), "\"allreduce.x\"") < 1 && std::chrono::steady_clock::now() < until) {
    static_cast<void>(nobodys.wait_done(std::chrono::milliseconds(5)));
  }
  CHECK(count_of(file.text(), "\"allreduce.x\"") >= 1);
}

TEST("engine timeline: a failure keeps the last records and nobody waits for ranks that left") {
  TemporaryFile file;
  World world(2);
  world.engine(0).start_timeline(file.path, false);
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.last", 3); });
  world.engine(1).close("it is done");
  bool failed = false;
  try {
    reduce(world.engine(0), "allreduce.alone", 3);
  } catch (const Error&) {
    failed = true;
  }
  CHECK(failed);
  const auto before = std::chrono::steady_clock::now();
  world.engine(0).stop_timeline();
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::milliseconds(900));
  CHECK(RecordParser::parse(file.text()).has_value());
  CHECK_EQ(count_of(file.text(), "\"allreduce.last\""), 2U);
}

TEST("engine timeline: a file that cannot be written is refused, and the engine goes on") {
  World world(2);
  bool refused = false;
  try {
    world.engine(0).start_timeline("/nowhere/at/all.json", false);
  } catch (const Error& error) {
    refused = error.kind() == ErrorKind::kUsage;
  }
  CHECK(refused);
  world.engine(0).stop_timeline();
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.x", 3); });
}

bool refuses_trace(Engine& engine, const std::string& path, const std::string& why) {
  try {
    engine.start_trace(path);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kUsage && contains(error.what(), why);
  }
  return false;
}

TEST("engine timeline: a trace gives way to the program, whose timeline it neither ends nor is ended by") {
  TemporaryFile traced;
  TemporaryFile own;
  World world(2);
  Engine& engine = world.engine(0);
  engine.start_trace(traced.path);
  CHECK(refuses_trace(engine, own.path, "another trace"));
  engine.stop_timeline();  // of the program, which has none
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.traced", 3); });
  engine.start_timeline(own.path, false);
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.own", 3); });
  CHECK(!engine.stop_trace());
  CHECK(refuses_trace(engine, traced.path, "there is a timeline already, in " + own.path.string()));
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.more", 3); });
  engine.stop_timeline();
  CHECK(RecordParser::parse(traced.text()).has_value());
  CHECK(count_of(traced.text(), "\"allreduce.traced\"") >= 1);
  for (const std::string name : {"own", "more"}) CHECK_EQ(count_of(own.text(), "\"allreduce." + name + "\""), 2U);
  engine.start_trace(traced.path);
  CHECK(engine.stop_trace());
}

TEST("engine timeline: a trace that begins at the same moment gives way, too") {
  World world(2);
  Engine& engine = world.engine(0);
  for (int i = 0; i < 30; ++i) {
    TemporaryFile traced;
    TemporaryFile own;
    std::thread watcher([&] {
      try {
        engine.start_trace(traced.path);
      } catch (const Error& error) {
        CHECK(contains(error.what(), "there is a timeline already"));
      }
    });
    engine.start_timeline(own.path, false);
    watcher.join();
    world.run([&](int rank) { reduce(world.engine(rank), "allreduce.after", 3); });
    CHECK(!engine.stop_trace());
    engine.stop_timeline();
    CHECK_EQ(count_of(own.text(), "\"allreduce.after\""), 2U);
  }
}

TEST("engine timeline: a file that cannot be written leaves the timeline before, which can be stopped") {
  TemporaryFile own;
  World world(2);
  Engine& engine = world.engine(0);
  engine.start_timeline(own.path, false);
  bool refused = false;
  try {
    engine.start_timeline("/nowhere/at/all.json", false);
  } catch (const Error& error) {
    refused = error.kind() == ErrorKind::kUsage;
  }
  CHECK(refused);
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.own", 3); });
  engine.stop_timeline();
  world.run([&](int rank) { reduce(world.engine(rank), "allreduce.later", 3); });
  CHECK_EQ(count_of(own.text(), "\"allreduce.own\""), 2U);
  CHECK_EQ(count_of(own.text(), "\"allreduce.later\""), 0U);
}

TEST("engine autotune: tries thresholds while steps repeat, and the results stay right") {
  EngineOptions options;
  options.autotune = AutotuneOptions();
  options.fusion_threshold = size_t{1} << 20;
  options.log = [](LogLevel, const std::string&) {};
  World world(2, options);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int step = 0; step < 60; ++step) {
      std::vector<std::vector<float>> tensors(6, std::vector<float>(20000, 1.0F));
      std::vector<std::shared_ptr<Operation>> operations;
      for (size_t i = 0; i < tensors.size(); ++i) {
        operations.push_back(
            make_operation(OpKind::kAllreduce, "t" + std::to_string(i), {view(tensors[i])}, {view(tensors[i])}));
        engine.submit(operations.back());
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        CHECK(engine.wait(*operations[i], std::chrono::seconds(30)));
        CHECK_EQ(tensors[i].back(), 2.0F);
      }
    }
  });
  CHECK(world.engine(0).statistics().tuned_threshold > 0);
  CHECK_EQ(world.engine(1).statistics().tuned_threshold, uint64_t{0});
}

}  // namespace
}  // namespace hvd::testing
