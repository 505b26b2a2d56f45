#include "engine/timeline/timeline_json.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace hvd {
namespace {

constexpr std::string_view kCycleStart = R"("CYCLE_START")";
constexpr uint32_t kMarksOfRank = 0;
constexpr std::string_view kMarksName = R"("marks")";

// The length of the valid UTF-8 sequence that the text begins with; 0 if there is none. RFC 3629, section 4.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned head = byte(0);
  if (head < 0x80) return 1;
  if (head >= 0xC2 && head <= 0xDF) return follows(1) ? 2 : 0;
  // The second byte excludes longer forms than needed, surrogates, and what lies beyond U+10FFFF.
  if (head >= 0xE0 && head <= 0xEF) {
    return follows(1, head == 0xE0 ? 0xA0 : 0x80, head == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  }
  if (head >= 0xF0 && head <= 0xF4) {
    return follows(1, head == 0xF0 ? 0x90 : 0x80, head == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void append_escaped(std::string& out, char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else {
    const auto value = static_cast<unsigned char>(c);
    out += "\\u00";
    out += kHex[value >> 4];
    out += kHex[value & 15];
  }
}

}  // namespace

std::string to_json(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (length == 1 && (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F)) {
      append_escaped(out, c);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out + "\"";
}

TimelineJson::TimelineJson(const std::vector<std::string>& rank_names, bool mark_cycles) : mark_cycles_(mark_cycles) {
  ranks_.resize(rank_names.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].rank = static_cast<int>(i);
    ranks_[i].where = rank_names[i];
  }
}

std::string TimelineJson::header(int64_t start_epoch_us) {
  text_ = R"({"name":"process_name","ph":"M","pid":0,"args":{"start_time_since_epoch_in_micros":)" +
          std::to_string(start_epoch_us) + "}}";
  name_rank(ranks_.front());
  return take();
}

void TimelineJson::add(int rank, const TimelineChunk& chunk) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  name_rank(state);
  state.names.resize(chunk.first_name);
  for (const std::string& name : chunk.names) state.names.push_back(to_json(name));
  if (chunk.num_dropped > 0) {
    add_gap(state, chunk.num_dropped, chunk.events.empty() ? state.last_ns : chunk.events.front().at_ns);
  }
  for (const TimelineEvent& event : chunk.events) {
    switch (event.kind) {
      case TimelineEvent::Kind::kBegin:
        add_begin(state, event);
        break;
      case TimelineEvent::Kind::kEnd:
        add_end(state, event);
        break;
      case TimelineEvent::Kind::kMark:
        add_mark(state, event);
        break;
    }
  }
}

void TimelineJson::end_all() {
  for (Rank& rank : ranks_) end_open(rank, rank.last_ns);
}

void TimelineJson::name_rank(Rank& rank) {
  if (std::exchange(rank.named, true)) return;
  const std::string number = std::to_string(rank.rank);
  const std::string name = "rank " + number + (rank.where.empty() ? "" : " (" + rank.where + ")");
  text_ +=
      ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + number + R"(,"args":{"name":)" + to_json(name) + "}}";
  text_ += ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":" + number + R"(,"args":{"sort_index":)" + number +
           "}}";
}

uint32_t TimelineJson::tensor_of(Rank& rank, uint32_t name) {
  const std::string& json_name = rank.names[name];
  const auto next = static_cast<uint32_t>(tensors_.size() + 1);
  const uint32_t tensor = tensors_.try_emplace(json_name, next).first->second;
  named_track(rank, tensor, json_name);
  return tensor;
}

TimelineJson::Track& TimelineJson::named_track(Rank& rank, uint32_t tensor, std::string_view json_name) {
  if (rank.tracks.size() <= tensor) rank.tracks.resize(size_t{tensor} + 1);
  Track& track = rank.tracks[tensor];
  if (std::exchange(track.named, true)) return track;
  text_ += ",\n{\"name\":\"thread_name\",\"ph\":\"M\"";
  put("pid", rank.rank);
  put("tid", tensor);
  text_ += R"(,"args":{"name":)";
  text_ += json_name;
  text_ += "}}";
  return track;
}

void TimelineJson::add_gap(Rank& rank, uint64_t num_dropped, int64_t at_ns) {
  // What is open may have ended among the lost events, and its end must not be taken for that of something later.
  end_open(rank, at_ns);
  named_track(rank, kMarksOfRank, kMarksName);
  begin_event("i", rank, kMarksOfRank, at_ns);
  put("name", R"("EVENTS_DROPPED")");
  put("s", R"("p")");
  text_ += R"(,"args":{"count":)" + std::to_string(num_dropped) + "}}";
}

void TimelineJson::add_begin(Rank& rank, const TimelineEvent& event) {
  const uint32_t tensor = tensor_of(rank, event.tensor);
  ++rank.tracks[tensor].num_open;
  begin_event("B", rank, tensor, event.at_ns);
  put("name", rank.names[event.name]);
  text_ += '}';
}

void TimelineJson::add_end(Rank& rank, const TimelineEvent& event) {
  const uint32_t tensor = tensor_of(rank, event.tensor);
  if (rank.tracks[tensor].num_open == 0) return;
  --rank.tracks[tensor].num_open;
  begin_event("E", rank, tensor, event.at_ns);
  if (event.name != kNoName || event.shape != kNoName) {
    text_ += R"(,"args":{)";
    if (event.name != kNoName) text_ += R"("dtype":)" + rank.names[event.name];
    if (event.name != kNoName && event.shape != kNoName) text_ += ',';
    if (event.shape != kNoName) text_ += R"("shape":)" + rank.names[event.shape];
    text_ += '}';
  }
  text_ += '}';
}

void TimelineJson::add_mark(Rank& rank, const TimelineEvent& event) {
  const bool of_rank = event.tensor == kNoName;
  const std::string& name = rank.names[event.name];
  if (of_rank && !mark_cycles_ && name == kCycleStart) return;
  if (of_rank) named_track(rank, kMarksOfRank, kMarksName);
  begin_event(of_rank ? "i" : "X", rank, of_rank ? kMarksOfRank : tensor_of(rank, event.tensor), event.at_ns);
  put("name", name);
  text_ += of_rank ? R"(,"s":"g"})" : R"(,"dur":0})";
}

void TimelineJson::end_open(Rank& rank, int64_t at_ns) {
  for (size_t tensor = 0; tensor < rank.tracks.size(); ++tensor) {
    for (; rank.tracks[tensor].num_open > 0; --rank.tracks[tensor].num_open) {
      begin_event("E", rank, static_cast<uint32_t>(tensor), at_ns);
      text_ += '}';
    }
  }
}

void TimelineJson::begin_event(std::string_view phase, Rank& rank, uint32_t tensor, int64_t at_ns) {
  // Time may not run backwards on a line, though the offset between the clocks may have become known better.
  Track& track = rank.tracks[tensor];
  track.last_ns = std::max(track.last_ns, at_ns);
  rank.last_ns = std::max(rank.last_ns, at_ns);
  text_ += ",\n{\"ph\":\"";
  text_ += phase;
  text_ += '"';
  put("ts", track.last_ns / 1000);
  if (const int64_t rest = track.last_ns % 1000; rest != 0) {
    text_ += '.';
    for (const int64_t digit : {rest / 100, rest / 10 % 10, rest % 10}) text_ += static_cast<char>('0' + digit);
  }
  put("pid", rank.rank);
  put("tid", tensor);
}

void TimelineJson::put_key(std::string_view key) {
  text_ += ",\"";
  text_ += key;
  text_ += "\":";
}

void TimelineJson::put(std::string_view key, std::string_view json) {
  put_key(key);
  text_ += json;
}

void TimelineJson::put(std::string_view key, int64_t value) {
  std::array<char, 24> digits{};
  const char* const end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  put(key, {digits.data(), static_cast<size_t>(end - digits.data())});
}

}  // namespace hvd
