#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "base/fd.h"
#include "engine/timeline/timeline.h"
#include "engine/timeline/timeline_writer.h"
#include "test_timeline.h"
#include "testing/check.h"
#include "testing/manual_clock.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using testing::ManualClock;

// A file name in a folder of its own, gone at the end.
class Folder {
 public:
  Folder() {
    const std::string pattern = "/tmp/horovod_timeline_XXXXXX";
    std::copy(pattern.c_str(), pattern.c_str() + pattern.size() + 1, path_);
    REQUIRE(mkdtemp(path_) != nullptr);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    unlink(file().c_str());
    rmdir(path_);
  }
  [[nodiscard]] std::string file() const { return std::string(path_) + "/timeline.json"; }

 private:
  char path_[64];
};

TimelineWriterOptions options_for(const std::string& path, int size = 2) {
  TimelineWriterOptions options;
  options.path = path;
  options.start_epoch_us = 1234;
  options.started = ManualClock().now();
  options.rank_names = std::vector<std::string>(static_cast<size_t>(size), "host:1");
  return options;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The records of the file once there are so many; an empty list if they do not come. Looks at a file that another
// thread appends to, so a look may find an append that is under way.
std::vector<Record> wait_for_records(const std::string& path, size_t count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < until) {
    const auto records = RecordParser::parse(read(path));
    if (records && records->size() >= count) return *records;
    std::this_thread::yield();
  }
  return {};
}

std::vector<Record> records_of(const std::string& path) {
  const auto records = RecordParser::parse(read(path));
  CHECK(records.has_value());
  return records.value_or(std::vector<Record>());
}

constexpr size_t kHeaderRecords = 3;

// A recorder that has recorded `num_operations` of a few tensors.
Bytes some_events(int num_operations, uint32_t run = 0) {
  ManualClock clock;
  TimelineRecorder recorder;
  recorder.start(clock.now(), run);
  for (int i = 0; i < num_operations; ++i) {
    const std::string tensor = "allreduce.grad." + std::to_string(i % 7);
    recorder.begin(tensor, "ALLREDUCE", clock.now());
    clock.advance(std::chrono::microseconds(3));
    recorder.end(tensor, clock.now(), "float32", "[4]");
  }
  return recorder.drain();
}

bool is_refused(TimelineWriter& writer, int rank, int64_t offset, const Bytes& chunk) {
  try {
    writer.add(rank, offset, chunk);
    return false;
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kInternal;
  }
}

TEST("timeline writer: the file is complete before and after every append, while it is written") {
  const Folder folder;
  TimelineWriter writer(options_for(folder.file()));
  CHECK_EQ(records_of(folder.file()).size(), kHeaderRecords);
  TimelineRecorder recorder;
  ManualClock clock;
  recorder.start(clock.now());
  size_t expected = kHeaderRecords + 1;  // and the name of the tensor
  for (int i = 0; i < 50; ++i) {
    recorder.begin("allreduce.a", "ALLREDUCE", clock.now());
    recorder.end("allreduce.a", clock.now());
    writer.add(0, 0, recorder.drain());
    expected += 2;
    REQUIRE(wait_for_records(folder.file(), expected).size() == expected);
  }
  writer.close();
  writer.close();
  CHECK_EQ(records_of(folder.file()).size(), expected);
  CHECK(!writer.error().has_value());
  writer.add(0, 0, some_events(1));
}

TEST("timeline writer: times of a peer are moved to the clock of rank 0") {
  const Folder folder;
  {
    TimelineWriter writer(options_for(folder.file()));
    ManualClock clock;
    clock.advance(std::chrono::seconds(500));
    TimelineRecorder recorder;
    recorder.start(clock.now());
    recorder.begin("allreduce.a", "ALLREDUCE", clock.now() + std::chrono::microseconds(250));
    writer.add(1, std::chrono::nanoseconds(std::chrono::seconds(500)).count(), recorder.drain());
  }
  const auto records = records_of(folder.file());
  REQUIRE(records.size() == kHeaderRecords + 2 + 1 + 2);
  const Record& begin = records[records.size() - 2];
  CHECK_EQ(begin.at("ph") + begin.at("pid") + " " + begin.at("ts"), "\"B\"1 250");
  CHECK_EQ(records.back().at("ph"), "\"E\"");
}

TEST("timeline writer: many chunks of many ranks end up whole, with every line balanced") {
  const Folder folder;
  constexpr int kRanks = 16;
  constexpr int kOperations = testing::kSanitized ? 500 : 2000;
  {
    TimelineWriter writer(options_for(folder.file(), kRanks));
    for (int rank = 0; rank < kRanks; ++rank) writer.add(rank, 0, some_events(kOperations));
  }
  std::map<std::string, int> depth;
  size_t num_begins = 0;
  for (const Record& record : records_of(folder.file())) {
    const std::string line = record.at("pid") + "/" + (record.contains("tid") ? record.at("tid") : "");
    if (record.at("ph") == "\"B\"") {
      ++depth[line];
      ++num_begins;
    }
    if (record.at("ph") == "\"E\"") CHECK(--depth[line] >= 0);
  }
  CHECK_EQ(num_begins, size_t{kRanks} * kOperations);
  for (const auto& [line, open] : depth) CHECK_EQ(open, 0);
}

TEST("timeline writer: a process that is killed leaves a readable file") {
  const Folder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    TimelineWriter writer(options_for(folder.file()));
    writer.add(0, 0, some_events(100));
    while (true) pause();
  }
  CHECK_EQ(wait_for_records(folder.file(), kHeaderRecords + 207).size(), kHeaderRecords + 207);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK_EQ(records_of(folder.file()).size(), kHeaderRecords + 207);
}

TEST("timeline writer: damaged chunks are refused, and the file goes on") {
  const Folder folder;
  TimelineWriter writer(options_for(folder.file()));
  const Bytes good = some_events(3);
  CHECK(is_refused(writer, 2, 0, good));
  CHECK(is_refused(writer, -1, 0, good));
  CHECK(is_refused(writer, 0, 0, Bytes(5)));
  CHECK(is_refused(writer, 0, INT64_MIN, good));
  TimelineChunk chunk = TimelineChunk::decode(good);
  chunk.first_name = 1;
  CHECK(is_refused(writer, 0, 0, chunk.encode()));
  chunk.first_name = 0;
  const auto refused_with = [&](const auto& change) {
    TimelineChunk changed = chunk;
    change(changed.events.front());
    return is_refused(writer, 0, 0, changed.encode());
  };
  CHECK(refused_with([](TimelineEvent& event) { event.tensor = 99; }));
  CHECK(refused_with([](TimelineEvent& event) { event.tensor = kNoName; }));
  CHECK(refused_with([](TimelineEvent& event) { event.name = kNoName; }));
  CHECK(refused_with([](TimelineEvent& event) { event.shape = 99; }));
  CHECK(refused_with([](TimelineEvent& event) { event.kind = static_cast<TimelineEvent::Kind>(3); }));
  std::mt19937_64 random(9);
  for (int round = 0; round < 2000; ++round) {
    Bytes damaged = good;
    for (int hits = 0; hits < 3; ++hits) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    static_cast<void>(is_refused(writer, 0, 0, damaged));
  }
  writer.add(1, 0, good);
  writer.close();
  CHECK(!records_of(folder.file()).empty());
}

TEST("timeline writer: chunks of another run are ignored") {
  const Folder folder;
  TimelineWriterOptions options = options_for(folder.file());
  options.run = 2;
  TimelineWriter writer(options);
  writer.add(0, 0, some_events(3, 1));
  writer.close();
  CHECK_EQ(records_of(folder.file()).size(), kHeaderRecords);
}

TEST("timeline writer: beyond the most it may hold, events are dropped and counted") {
  const Folder folder;
  TimelineWriterOptions options = options_for(folder.file());
  options.most_queued_bytes = 0;
  TimelineWriter writer(options);
  writer.add(0, 0, some_events(10));
  writer.close();
  const auto records = records_of(folder.file());
  CHECK_EQ(records.back().at("name"), "\"EVENTS_DROPPED\"");
  CHECK_EQ(records.back().at("args"), R"({"count":20})");
}

TEST("timeline writer: a file that cannot be made is an error with its path and the reason") {
  for (const std::string path : {"/nowhere/timeline.json", "/", "/dev/full", ""}) {
    std::string message;
    try {
      const TimelineWriter writer(options_for(path));
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
      message = error.what();
    }
    CHECK(message.find("to " + path + ": ") != std::string::npos);
  }
}

TEST("timeline writer: a file that cannot grow any more keeps its end and says why") {
  const Fd memory(memfd_create("timeline", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(memory.valid());
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  TimelineWriter writer(options_for(path));
  REQUIRE(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_GROW) == 0);
  writer.add(0, 0, some_events(3));
  writer.close();
  const auto error = writer.error();
  REQUIRE(error.has_value());
  CHECK(std::string(error->what()).find(path) != std::string::npos);
  CHECK(!writer.error().has_value());
  CHECK_EQ(records_of(path).size(), kHeaderRecords);
}

TEST("timeline writer: the child of a fork leaves the file alone") {
  const Folder folder;
  TimelineWriter writer(options_for(folder.file()));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    writer.abandon();
    writer.add(0, 0, some_events(3));
    writer.close();
    _exit(writer.error() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  writer.close();
  CHECK_EQ(records_of(folder.file()).size(), kHeaderRecords);
}

}  // namespace
}  // namespace hvd
