#include "engine/timeline/timeline_writer.h"

#include <fcntl.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>

#include "base/fd.h"
#include "engine/timeline/timeline_json.h"

namespace hvd {
namespace {

constexpr std::string_view kEndOfArray = "\n]\n";
// How much is put together before it is written.
constexpr size_t kAppendBytes = size_t{1} << 20;

[[noreturn]] void throw_damaged(const std::string& why) {
  throw Error(ErrorKind::kInternal, "a timeline chunk is damaged, " + why + ": another version, or a bug");
}

std::string reason() { return std::generic_category().message(errno); }

// Returns whether all was written.
bool write_all(int fd, std::string_view text, int64_t at) {
  while (!text.empty()) {
    const ssize_t written = pwrite(fd, text.data(), text.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
    at += written;
  }
  return true;
}

// How many names a rank has sent when the chunk has come; throws if the chunk does not fit to those before.
uint32_t names_after(const TimelineChunk& chunk, uint32_t num_names) {
  if (chunk.first_name != 0 && chunk.first_name != num_names) {
    throw_damaged("its first name is number " + std::to_string(chunk.first_name) + " and not " +
                  std::to_string(num_names));
  }
  const size_t after = chunk.first_name + chunk.names.size();
  for (const TimelineEvent& event : chunk.events) {
    const bool is_end = event.kind == TimelineEvent::Kind::kEnd;
    const bool is_mark = event.kind == TimelineEvent::Kind::kMark;
    if ((event.tensor >= after && !(is_mark && event.tensor == kNoName)) ||
        (event.name >= after && !(is_end && event.name == kNoName)) ||
        (event.shape >= after && event.shape != kNoName)) {
      throw_damaged("it refers to a name that was not sent");
    }
  }
  return static_cast<uint32_t>(after);
}

// Turns the times of the chunk into nanoseconds since `started`.
void shift_times(TimelineChunk& chunk, int64_t offset_ns, TimePoint started) {
  for (TimelineEvent& event : chunk.events) {
    if (__builtin_sub_overflow(event.at_ns, offset_ns, &event.at_ns) ||
        __builtin_sub_overflow(event.at_ns, started.time_since_epoch().count(), &event.at_ns)) {
      throw_damaged("it holds an impossible time");
    }
  }
}

size_t bytes_of(const TimelineChunk& chunk) {
  size_t bytes = sizeof(TimelineChunk) + chunk.events.size() * sizeof(TimelineEvent);
  for (const std::string& name : chunk.names) bytes += sizeof(std::string) + name.size();
  return bytes;
}

}  // namespace

// What the writer and its thread share: the queue between them, and the file.
class TimelineWriter::Appender {
 public:
  explicit Appender(const TimelineWriterOptions& options);

  void push(int rank, TimelineChunk chunk);
  // The thread: appends until finish() was called and the queue is empty. Does not throw.
  void run();
  // Returns whether the thread has ended within this time.
  bool finish(Duration patience);
  [[nodiscard]] std::optional<Error> take_error();

 private:
  struct Item {
    int rank;
    TimelineChunk chunk;
  };

  void append_until_finished();
  void append_items(const std::deque<Item>& items);
  void append(const std::string& text);
  void fail(const std::string& why);

  const std::string path_;
  const size_t most_queued_bytes_;

  std::mutex mutex_;  // guards the next block
  std::condition_variable changed_;
  std::deque<Item> queue_;
  size_t queued_bytes_ = 0;  // with what the thread has in its hands
  bool finishing_ = false;
  bool ended_ = false;
  bool failed_ = false;
  std::optional<Error> error_;

  // Only the thread's.
  Fd file_;
  TimelineJson json_;
  int64_t end_ = 0;  // where the end of the array stands
};

TimelineWriter::Appender::Appender(const TimelineWriterOptions& options)
    : path_(options.path),
      most_queued_bytes_(options.most_queued_bytes),
      // Not to wait for a reader, should it be a pipe.
      file_(open(options.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644)),
      json_(options.rank_names, options.mark_cycles) {
  if (options.rank_names.empty()) throw Error(ErrorKind::kUsage, "a timeline needs the names of all ranks");
  const std::string head = "[\n" + json_.header(options.start_epoch_us);
  if (!file_.valid() || !write_all(file_.get(), head + std::string(kEndOfArray), 0)) {
    throw Error(ErrorKind::kUsage, "the timeline cannot be written to " + path_ + ": " + reason() +
                                       "; rank 0 needs the name of a file that it may create");
  }
  end_ = static_cast<int64_t>(head.size());
}

void TimelineWriter::Appender::push(int rank, TimelineChunk chunk) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  if (queued_bytes_ + bytes_of(chunk) > most_queued_bytes_) {
    // Names are kept: later chunks refer to them.
    chunk.num_dropped += chunk.events.size();
    chunk.events = {};
  }
  queued_bytes_ += bytes_of(chunk);
  queue_.push_back({rank, std::move(chunk)});
  changed_.notify_all();
}

void TimelineWriter::Appender::run() {
  try {
    append_until_finished();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void TimelineWriter::Appender::append_until_finished() {
  while (true) {
    std::deque<Item> items;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return finishing_ || !queue_.empty(); });
      items.swap(queue_);
    }
    if (items.empty()) break;
    append_items(items);
  }
  json_.end_all();
  append(json_.take());
}

bool TimelineWriter::Appender::finish(Duration patience) {
  std::unique_lock lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
  if (changed_.wait_for(lock, patience, [&] { return ended_; })) return true;
  if (!std::exchange(failed_, true)) {
    error_.emplace(ErrorKind::kInternal, "the end of the timeline " + path_ +
                                             " is missing: its file system did not take what was written in time");
  }
  return false;
}

std::optional<Error> TimelineWriter::Appender::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, std::nullopt);
}

void TimelineWriter::Appender::append_items(const std::deque<Item>& items) {
  for (const Item& item : items) {
    json_.add(item.rank, item.chunk);
    if (json_.bytes() > kAppendBytes) append(json_.take());
    const std::lock_guard lock(mutex_);
    queued_bytes_ -= bytes_of(item.chunk);
  }
  append(json_.take());
}

void TimelineWriter::Appender::append(const std::string& text) {
  if (text.empty() || !file_.valid()) return;
  if (write_all(file_.get(), text + std::string(kEndOfArray), end_)) {
    end_ += static_cast<int64_t>(text.size());
  } else {
    fail(reason());
  }
}

void TimelineWriter::Appender::fail(const std::string& why) {
  // Gives back the end that the array had before, in space that the file already has.
  const int64_t bytes = end_ + static_cast<int64_t>(kEndOfArray.size());
  const bool repaired = write_all(file_.get(), kEndOfArray, end_) && ftruncate(file_.get(), bytes) == 0;
  file_.reset();
  const std::lock_guard lock(mutex_);
  failed_ = true;
  queue_.clear();
  error_.emplace(ErrorKind::kInternal, "the timeline " + path_ + " ends early: " + why +
                                           (repaired ? "" : "; it lacks the bracket at its end"));
}

TimelineWriter::TimelineWriter(TimelineWriterOptions options)
    : options_(std::move(options)),
      num_names_(options_.rank_names.size()),
      appender_(std::make_shared<Appender>(options_)),
      thread_([appender = appender_] { appender->run(); }) {}

TimelineWriter::~TimelineWriter() { close(); }

void TimelineWriter::add(int rank, int64_t offset_ns, const Bytes& encoded) {
  if (appender_ == nullptr) return;
  if (rank < 0 || static_cast<size_t>(rank) >= num_names_.size()) {
    throw_damaged("its rank " + std::to_string(rank) + " is not one of " + std::to_string(num_names_.size()));
  }
  TimelineChunk chunk = TimelineChunk::decode(encoded);
  if (chunk.run != options_.run) return;
  uint32_t& num_names = num_names_[static_cast<size_t>(rank)];
  const uint32_t after = names_after(chunk, num_names);
  shift_times(chunk, offset_ns, options_.started);
  num_names = after;
  appender_->push(rank, std::move(chunk));
}

void TimelineWriter::close() {
  if (!thread_.joinable()) return;
  if (appender_->finish(options_.close_patience)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::optional<Error> TimelineWriter::error() { return appender_ == nullptr ? std::nullopt : appender_->take_error(); }

void TimelineWriter::abandon() {
  if (!thread_.joinable()) return;
  thread_.detach();
  // The thread may have held its lock when the process was forked, so what they share must never be touched again. It
  // is not destroyed here either: the thread's own reference to it stays for ever.
  appender_.reset();
}

}  // namespace hvd
