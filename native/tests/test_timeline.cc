#include "test_timeline.h"

#include <cmath>
#include <memory>
#include <random>

#include "engine/timeline/clock_offset.h"
#include "engine/timeline/timeline.h"
#include "engine/timeline/timeline_json.h"
#include "testing/check.h"
#include "testing/manual_clock.h"

namespace hvd {
namespace {

using Kind = TimelineEvent::Kind;
using std::chrono::microseconds;
using std::chrono::nanoseconds;
using testing::kSanitized;
using testing::ManualClock;

// What a rank would have drained so far, put together.
struct Drained {
  std::vector<std::string> names;
  std::vector<TimelineEvent> events;
  uint64_t num_dropped = 0;
  size_t num_chunks = 0;
  size_t largest_chunk = 0;

  void take(TimelineRecorder& recorder) {
    while (recorder.more()) {
      const Bytes bytes = recorder.drain();
      const TimelineChunk chunk = TimelineChunk::decode(bytes);
      CHECK(chunk.first_name == 0 || chunk.first_name == names.size());
      names.resize(chunk.first_name);
      names.insert(names.end(), chunk.names.begin(), chunk.names.end());
      events.insert(events.end(), chunk.events.begin(), chunk.events.end());
      num_dropped += chunk.num_dropped;
      largest_chunk = std::max(largest_chunk, bytes.size());
      ++num_chunks;
    }
  }
  [[nodiscard]] std::string name(uint32_t number) const { return number == kNoName ? "-" : names.at(number); }
};

TEST("timeline: what was recorded comes out in order, with its names") {
  const ManualClock clock;
  TimelineRecorder recorder;
  recorder.begin("allreduce.a", "ALLREDUCE", clock.now());
  CHECK(!recorder.active());
  CHECK(!recorder.more());
  recorder.start(clock.now(), 7);
  recorder.begin("allreduce.a", "ALLREDUCE", clock.now() + nanoseconds(1));
  recorder.mark("allreduce.a", "3", clock.now() + nanoseconds(2));
  recorder.mark("", "CYCLE_START", clock.now() + nanoseconds(3));
  recorder.end("allreduce.a", clock.now() + nanoseconds(4), "float32", "[2, 3]");
  recorder.end("allreduce.b", clock.now() - nanoseconds(5));
  recorder.stop();
  recorder.mark("", "CYCLE_START", clock.now());
  CHECK_EQ(TimelineChunk::decode(TimelineRecorder(recorder).drain()).run, 7U);
  Drained got;
  got.take(recorder);
  CHECK(recorder.drain().empty());
  REQUIRE(got.events.size() == 5);
  const int64_t start = clock.now().time_since_epoch().count();
  const auto is = [&](size_t i, Kind kind, int64_t after, const std::string& tensor, const std::string& name) {
    const TimelineEvent& event = got.events[i];
    CHECK(event.kind == kind);
    CHECK_EQ(event.at_ns, start + after);
    CHECK(got.name(event.tensor) == tensor);
    CHECK(got.name(event.name) == name);
  };
  is(0, Kind::kBegin, 1, "allreduce.a", "ALLREDUCE");
  is(1, Kind::kMark, 2, "allreduce.a", "3");
  is(2, Kind::kMark, 3, "-", "CYCLE_START");
  is(3, Kind::kEnd, 4, "allreduce.a", "float32");
  CHECK_EQ(got.name(got.events[3].shape), "[2, 3]");
  is(4, Kind::kEnd, 0, "allreduce.b", "-");  // from before the start
}

TEST("timeline: a name is sent once") {
  const ManualClock clock;
  TimelineRecorder recorder;
  recorder.start(clock.now());
  Drained got;
  for (int i = 0; i < 10; ++i) {
    recorder.begin(i < 9 ? "a" : "b", "QUEUE", clock.now());
    got.take(recorder);
  }
  CHECK(got.names == (std::vector<std::string>{"a", "QUEUE", "b"}));
  CHECK_EQ(got.num_chunks, 10U);
}

TEST("timeline: a full ring keeps the newest events and counts the others") {
  const ManualClock clock;
  TimelineRecorder recorder(100);
  recorder.start(clock.now());
  for (int i = 0; i < 1000; ++i) recorder.mark("", "mark " + std::to_string(i), clock.now());
  Drained got;
  got.take(recorder);
  CHECK_EQ(got.events.size(), 128U);
  CHECK_EQ(got.num_dropped, 1000U - 128U);
  for (size_t i = 0; i < got.events.size(); ++i)
    CHECK_EQ(got.name(got.events[i].name), "mark " + std::to_string(i + 872));
  recorder.mark("", "mark 3", clock.now());
  got.take(recorder);
  CHECK_EQ(got.name(got.events.back().name), "mark 3");
  CHECK_EQ(got.num_dropped, 872U);
}

TEST("timeline: chunks stay below their limit, and so does a name") {
  const ManualClock clock;
  TimelineRecorder recorder;
  recorder.start(clock.now());
  for (int i = 0; i < 5000; ++i) recorder.mark("", std::to_string(i) + std::string(10'000, 'x'), clock.now());
  for (int i = 0; i < 50'000; ++i) recorder.begin("a", "b", clock.now());
  Drained got;
  got.take(recorder);
  CHECK_EQ(got.events.size(), 55'000U);
  CHECK_EQ(got.num_dropped, 0U);
  CHECK(got.largest_chunk <= TimelineRecorder::kMostChunkBytes + 5000);
  CHECK_EQ(got.names.front().size(), 4096U);
  CHECK(got.num_chunks > 5000 * 4096 / TimelineRecorder::kMostChunkBytes);
}

TEST("timeline: names without end do not fill the memory, drained or not") {
  const ManualClock clock;
  TimelineRecorder recorder(1024);
  recorder.start(clock.now());
  Drained got;
  size_t most_names = 0;
  for (int i = 0; i < 300'000; ++i) {
    recorder.begin("tensor " + std::to_string(i), "ALLREDUCE", clock.now());
    if (i >= 150'000) continue;
    got.take(recorder);
    most_names = std::max(most_names, got.names.size());
    REQUIRE(got.name(got.events.back().tensor) == "tensor " + std::to_string(i));
    CHECK_EQ(got.name(got.events.back().name), "ALLREDUCE");
  }
  got.take(recorder);
  CHECK(most_names <= 65'536);
  CHECK(got.names.size() <= 65'536);
  CHECK_EQ(got.events.size() + got.num_dropped, 300'000U);
  CHECK_EQ(got.name(got.events.back().tensor), "tensor 299999");
}

TEST("timeline: a second start begins anew") {
  const ManualClock clock;
  TimelineRecorder recorder;
  recorder.start(clock.now(), 1);
  recorder.begin("a", "b", clock.now());
  static_cast<void>(recorder.drain());
  recorder.begin("c", "d", clock.now());
  recorder.start(clock.now(), 2);
  CHECK(!recorder.more());
  recorder.begin("c", "d", clock.now());
  const TimelineChunk chunk = TimelineChunk::decode(recorder.drain());
  CHECK_EQ(chunk.run, 2U);
  CHECK_EQ(chunk.first_name, 0U);
  CHECK(chunk.names == (std::vector<std::string>{"c", "d"}));
}

bool decodes(const Bytes& bytes, size_t length) {
  // Memory that ends exactly where the chunk does, so that the address sanitizer sees every step beyond.
  const auto exact = std::make_unique<std::byte[]>(length);
  std::copy_n(bytes.begin(), length, exact.get());
  try {
    static_cast<void>(TimelineChunk::decode({exact.get(), length}));
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST("timeline: damaged chunks are refused or read, never crash") {
  const ManualClock clock;
  TimelineRecorder recorder;
  recorder.start(clock.now());
  recorder.begin("a", "b", clock.now());
  recorder.end("a", clock.now(), "int8", "[]");
  Bytes bytes = recorder.drain();
  CHECK(decodes(bytes, bytes.size()));
  for (size_t length = 0; length < bytes.size(); ++length) CHECK(!decodes(bytes, length));
  std::mt19937_64 random(3);
  for (int round = 0; round < (kSanitized ? 20'000 : 100'000); ++round) {
    Bytes damaged = bytes;
    for (int hits = 0; hits < 3; ++hits) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    decodes(damaged, damaged.size());
  }
  bytes.push_back(std::byte{0});
  CHECK(!decodes(bytes, bytes.size()));
}

TEST("timeline: names become JSON strings") {
  CHECK_EQ(to_json("grad.1"), R"("grad.1")");
  CHECK_EQ(to_json("a\"b\\c\n\x01"), R"("a\"b\\c\u000a\u0001")");
  CHECK_EQ(to_json("\u00e9\u20ac\U0001f600"), "\"\u00e9\u20ac\U0001f600\"");
  // Each byte that belongs to no character becomes U+FFFD.
  CHECK_EQ(to_json("\xff"), "\"\uFFFD\"");
  CHECK_EQ(to_json("\xc3"), "\"\uFFFD\"");                                // ends too early
  CHECK_EQ(to_json("\xc0\xaf"), "\"\uFFFD\uFFFD\"");                      // longer than needed
  CHECK_EQ(to_json("\xed\xa0\x80"), "\"\uFFFD\uFFFD\uFFFD\"");            // a surrogate
  CHECK_EQ(to_json("\xf4\x90\x80\x80"), "\"\uFFFD\uFFFD\uFFFD\uFFFD\"");  // beyond U+10FFFF
}

// The text of a whole file.
std::vector<Record> records_of(const std::string& header, const std::string& rest) {
  const auto records = RecordParser::parse("[\n" + header + rest + "\n]");
  REQUIRE(records.has_value());
  return *records;
}

std::vector<Record> with_phase(const std::vector<Record>& records, const std::string& phase) {
  std::vector<Record> found;
  for (const Record& record : records) {
    if (record.at("ph") == "\"" + phase + "\"") found.push_back(record);
  }
  return found;
}

TimelineChunk chunk_of(std::vector<std::string> names, std::vector<TimelineEvent> events, uint64_t num_dropped = 0) {
  TimelineChunk chunk;
  chunk.names = std::move(names);
  chunk.events = std::move(events);
  chunk.num_dropped = num_dropped;
  return chunk;
}

TimelineEvent event(Kind kind, int64_t at_ns, uint32_t tensor, uint32_t name = kNoName, uint32_t shape = kNoName) {
  return {.at_ns = at_ns, .kind = kind, .tensor = tensor, .name = name, .shape = shape};
}

TEST("timeline: the file begins with the time of its start and the name of rank 0") {
  TimelineJson json({"host-a:12"}, false);
  const std::string header = json.header(1'700'000'000'000'001);
  CHECK(header.starts_with(
      R"({"name":"process_name","ph":"M","pid":0,"args":{"start_time_since_epoch_in_micros":1700000000000001}})"));
  const auto records = records_of(header, "");
  REQUIRE(records.size() == 3);
  CHECK_EQ(records[1].at("args"), "{\"name\":\"rank 0 (host-a:12)\"}");
  CHECK_EQ(records[2].at("name"), "\"process_sort_index\"");
}

TEST("timeline: ranks are processes, tensors are threads") {
  TimelineJson json({"a:1", "", "c:3"}, true);
  const std::string header = json.header(1);
  json.add(0,
           chunk_of({"x", "QUEUE", "CYCLE_START"}, {event(Kind::kMark, 0, kNoName, 2), event(Kind::kBegin, 1'500, 0, 1),
                                                    event(Kind::kMark, 2'001, 0, 1)}));
  json.add(1, chunk_of({"QUEUE", "y", "x", "f\"", "[1]"},
                       {event(Kind::kBegin, 10, 1, 0), event(Kind::kBegin, 1'000'000, 2, 0),
                        event(Kind::kEnd, 1'000'002, 2, 3, 4), event(Kind::kEnd, 12, 1)}));
  const auto records = records_of(header, json.take());
  const auto begins = with_phase(records, "B");
  REQUIRE(begins.size() == 3);
  CHECK_EQ(begins[0].at("pid") + " " + begins[0].at("tid") + " " + begins[0].at("ts"), "0 1 1.500");
  CHECK_EQ(begins[1].at("pid") + " " + begins[1].at("tid") + " " + begins[1].at("ts"), "1 2 0.010");
  CHECK_EQ(begins[2].at("pid") + " " + begins[2].at("tid") + " " + begins[2].at("ts"), "1 1 1000");
  const auto ends = with_phase(records, "E");
  REQUIRE(ends.size() == 2);
  CHECK_EQ(ends[0].at("args"), R"({"dtype":"f\"","shape":"[1]"})");
  CHECK_EQ(ends[1].count("args"), 0U);
  CHECK_EQ(with_phase(records, "X").at(0).at("dur"), "0");
  CHECK_EQ(with_phase(records, "i").at(0).at("s"), "\"g\"");
  std::vector<std::string> names;
  for (const Record& record : with_phase(records, "M")) names.push_back(record.at("pid") + record.at("args"));
  CHECK_EQ(names.size(), 9U);  // one for the time, two for each of two ranks, a line of marks, three of tensors
  CHECK(std::count(names.begin(), names.end(), R"(1{"name":"rank 1"})") == 1);
  CHECK(std::count(names.begin(), names.end(), R"(1{"name":"x"})") == 1);
}

TEST("timeline: cycles are written only if asked for") {
  TimelineJson json({""}, false);
  static_cast<void>(json.header(1));
  json.add(0, chunk_of({"CYCLE_START"}, {event(Kind::kMark, 0, kNoName, 0)}));
  CHECK_EQ(json.take(), "");
}

TEST("timeline: ends without a beginning are left out, beginnings without an end are ended") {
  TimelineJson json({""}, false);
  const std::string header = json.header(1);
  json.add(0, chunk_of({"x", "A"}, {event(Kind::kEnd, 5, 0), event(Kind::kBegin, 6, 0, 1), event(Kind::kBegin, 7, 0, 1),
                                    event(Kind::kMark, 2'000, 0, 1)}));
  json.end_all();
  const auto records = records_of(header, json.take());
  CHECK_EQ(with_phase(records, "B").size(), 2U);
  const auto ends = with_phase(records, "E");
  REQUIRE(ends.size() == 2);
  CHECK_EQ(ends[0].at("ts"), "2");
}

TEST("timeline: what is open where events are lost ends there") {
  TimelineJson json({""}, false);
  const std::string header = json.header(1);
  json.add(0, chunk_of({"x", "A"}, {event(Kind::kBegin, 1'000, 0, 1)}));
  TimelineChunk after = chunk_of({}, {event(Kind::kEnd, 9'000, 0), event(Kind::kBegin, 10'000, 0, 1)}, 12);
  after.first_name = 2;
  json.add(0, after);
  const auto records = records_of(header, json.take());
  CHECK_EQ(with_phase(records, "B").size(), 2U);
  REQUIRE(with_phase(records, "E").size() == 1);
  CHECK_EQ(with_phase(records, "E")[0].at("ts"), "9");
  REQUIRE(with_phase(records, "i").size() == 1);
  CHECK_EQ(with_phase(records, "i")[0].at("args"), R"({"count":12})");
}

TEST("timeline: time does not run backwards on a line") {
  TimelineJson json({""}, false);
  const std::string header = json.header(1);
  json.add(0, chunk_of({"x", "A"}, {event(Kind::kBegin, -1'000, 0, 1), event(Kind::kEnd, 5'000, 0),
                                    event(Kind::kBegin, 4'000, 0, 1)}));
  const auto records = records_of(header, json.take());
  CHECK_EQ(with_phase(records, "B").at(0).at("ts"), "0");
  CHECK_EQ(with_phase(records, "B").at(1).at("ts"), "5");
}

TEST("clock offset: the sample with the shortest round trip counts") {
  ClockOffset clock;
  CHECK(!clock.has_sample());
  CHECK_EQ(clock.offset(), 0);
  clock.add_sample(1'000, 500'000, 3'000);
  CHECK_EQ(clock.offset(), 498'000);
  CHECK_EQ(clock.error_bound(), 1'000);
  clock.add_sample(4'000, 504'000, 4'200);
  CHECK_EQ(clock.offset(), 499'900);
  clock.add_sample(5'000, 900'000, 90'000);
  CHECK_EQ(clock.offset(), 499'900);
  clock.add_sample(9'000, 0, 8'000);
  CHECK_EQ(clock.offset(), 499'900);
}

TEST("clock offset: an old sample gives way, because clocks drift") {
  ClockOffset clock;
  clock.add_sample(0, 0, 2'000);
  clock.add_sample(1'000'000'000, 1'000'050'000, 1'000'040'000);
  CHECK_EQ(clock.offset(), 0 - 1'000);
  // After 10 s at 15 ppm the first may be wrong by 151 µs.
  clock.add_sample(10'000'000'000, 10'000'150'000, 10'000'200'000);
  CHECK_EQ(clock.offset(), 50'000);
}

TEST("clock offset: the error stays within its bound whatever the way takes") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 1000; ++round) {
    const auto truth = static_cast<int64_t>(random() >> 1) - (int64_t{1} << 62);
    ClockOffset clock;
    int64_t now = 0;
    for (int i = 0; i < 8; ++i) {
      const int64_t sent = now += 1'000;
      const int64_t there = now += static_cast<int64_t>(random() % 200'000);
      const int64_t back = now += static_cast<int64_t>(random() % 200'000);
      clock.add_sample(sent, there + truth, back);
      CHECK(std::abs(clock.offset() - truth) <= clock.error_bound() + 1);
    }
  }
}

TEST("clock offset: absurd times do no harm") {
  ClockOffset clock;
  clock.add_sample(0, INT64_MIN, 10);
  clock.add_sample(20, INT64_MAX, 22);
  CHECK(clock.has_sample());
}

}  // namespace
}  // namespace hvd
