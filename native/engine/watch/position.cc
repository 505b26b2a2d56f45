#include "engine/watch/position.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>

namespace hvd {
namespace {

// Long enough to tell a busy process from a sleeping one.
constexpr Duration kMeasurement = std::chrono::milliseconds(100);
// A thread that only waits for the interpreter's lock gets it sooner than this, as Python hands it over every 5 ms.
constexpr Duration kAnswerTime = std::chrono::milliseconds(500);
constexpr Duration kDumpTime = std::chrono::milliseconds(200);
constexpr size_t kMostDumpBytes = 16384;

Duration process_cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Whether a thread of this process has a core or waits for one: a share of a core may be small only because others want
// the cores too.
bool wants_core(pid_t thread) {
  if (thread <= 0 || thread == gettid()) return false;
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');  // of the command, which may hold anything
  return end != std::string::npos && text.compare(end, 3, ") R") == 0;
}

// `File "a.py", line 3 in f`, as faulthandler writes a frame, in the form of the other stacks; or the line as it is.
std::string frame_of(const std::string& line) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  const size_t number = line.rfind(kLine);
  if (line.rfind(kFile, 0) != 0 || number == std::string::npos) return line;
  return "  " + line.substr(kFile.size(), number - kFile.size()) + ":" + line.substr(number + kLine.size());
}

// What faulthandler wrote, with the thread that got the signal, the main thread, in front.
std::string stacks_of(const std::string& dump) {
  constexpr std::string_view kCurrent = "Current thread ";
  std::istringstream lines(dump);
  std::string main;
  std::string others;
  bool is_main = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const bool is_heading = line.front() != ' ';
    if (is_heading) is_main = line.rfind(kCurrent, 0) == 0;
    if (is_heading) line = is_main ? "MainThread:" : line.substr(0, line.find(" (")) + ":";
    (is_main ? main : others) += frame_of(line) + "\n";
  }
  return main + others;
}

}  // namespace

bool Position::wait_for_request(Duration timeout) {
  std::unique_lock lock(mutex_);
  has_watcher_ = true;
  watcher_ = gettid();
  changed_.wait_for(lock, timeout, [this] { return closed_ || stage_ == Stage::kAsked; });
  return !closed_ && stage_ == Stage::kAsked;
}

void Position::answer(std::string stacks, std::vector<InterpreterThread> threads) {
  const std::lock_guard lock(mutex_);
  if (stage_ != Stage::kAsked) return;
  stage_ = Stage::kAnswered;
  stacks_ = std::move(stacks);
  threads_ = std::move(threads);
}

pid_t Position::watcher() {
  const std::lock_guard lock(mutex_);
  return watcher_;
}

void Position::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Position::closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void Position::request(TimePoint now) {
  requested_ = true;
  signalled_ = false;
  requested_at_ = now;
  cpu_time_at_request_ = process_cpu_time();
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kAsked;
  changed_.notify_one();
}

std::optional<PositionReport> Position::take(TimePoint now) {
  const Duration passed = now - requested_at_;
  if (!requested_ || passed < kMeasurement) return std::nullopt;
  PositionReport report;
  {
    const std::lock_guard lock(mutex_);
    const bool answered = stage_ == Stage::kAnswered;
    if (!answered && passed < kAnswerTime && (has_watcher_ || dump_.signal != 0)) return std::nullopt;
    if (answered) {
      report.stacks = std::move(stacks_);
      report.threads = std::move(threads_);
    }
    if (answered || dump_.signal == 0) {
      stage_ = Stage::kIdle;
      requested_ = false;
      measure(report, now);
      return report;
    }
  }
  if (!signalled_) {
    send_signal();
    return std::nullopt;
  }
  if (passed < kAnswerTime + kDumpTime) return std::nullopt;
  report.stacks = read_dump();
  measure(report, now);
  report.activity += ", and native code keeps the interpreter's lock";
  requested_ = false;
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kIdle;
  return report;
}

void Position::send_signal() {
  signalled_ = true;
  if (ftruncate(dump_.fd, 0) != 0 || lseek(dump_.fd, 0, SEEK_SET) != 0) return;
  syscall(SYS_tgkill, getpid(), dump_.thread, dump_.signal);
}

std::string Position::read_dump() const {
  std::array<char, kMostDumpBytes> text{};
  const ssize_t bytes = pread(dump_.fd, text.data(), text.size(), 0);
  return bytes > 0 ? stacks_of({text.data(), static_cast<size_t>(bytes)}) : std::string();
}

void Position::measure(PositionReport& report, TimePoint now) const {
  const auto used = std::chrono::duration<double>(process_cpu_time() - cpu_time_at_request_).count();
  const auto passed = std::chrono::duration<double>(now - requested_at_).count();
  const auto percent = std::lround(100.0 * used / passed);
  const std::string share = " (" + std::to_string(percent) + " % of a core)";
  report.busy = percent >= 20 || wants_core(dump_.thread);
  report.activity = (report.busy ? "is busy" : "sleeps") + share;
}

}  // namespace hvd
