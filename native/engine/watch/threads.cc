#include "engine/watch/threads.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace hvd {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

struct Look {
  std::string call;      // in which it sleeps, with arguments
  std::string switches;  // how often it went to sleep, as a line
  bool operator==(const Look&) const = default;
};

Look look_at(const std::string& thread) {
  const std::string folder = "/proc/self/task/" + thread;
  Look look;
  std::ifstream call(folder + "/syscall");
  std::getline(call, look.call);
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("voluntary_ctxt_switches:", 0) == 0) look.switches = line;
  }
  return look;
}

std::map<pid_t, Look> look_at_all() {
  std::map<pid_t, Look> looks;
  const std::unique_ptr<DIR, CloseFolder> folder(opendir("/proc/self/task"));
  if (folder == nullptr) return looks;
  while (const dirent* entry = readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe): the folder is ours alone
    const char* name = static_cast<const char*>(entry->d_name);
    pid_t thread = 0;
    if (std::from_chars(name, name + std::strlen(name), thread).ec == std::errc()) looks[thread] = look_at(name);
  }
  return looks;
}

ThreadSleep sleep_on_futex(uint64_t operation, uint64_t timeout) {
  const uint64_t command = operation & FUTEX_CMD_MASK;
  if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET) return ThreadSleep::kNot;
  const bool is_private = (operation & FUTEX_PRIVATE_FLAG) != 0;  // that of a std::future is not
  return is_private && timeout == 0 ? ThreadSleep::kForOthers : ThreadSleep::kForEvents;
}

bool waits_for_events(long call) {
  switch (call) {
    case SYS_clock_nanosleep:
#ifdef SYS_nanosleep
    case SYS_nanosleep:
#endif
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
    case SYS_epoll_pwait:
#ifdef SYS_epoll_pwait2
    case SYS_epoll_pwait2:
#endif
    case SYS_rt_sigtimedwait:
      return true;
    default:
      return false;
  }
}

}  // namespace

ThreadSleep sleep_of(const std::string& line) {
  std::istringstream words(line);
  long call = -1;
  uint64_t address = 0;
  uint64_t operation = 0;
  uint64_t value = 0;
  uint64_t timeout = 0;
  if (!(words >> call)) return ThreadSleep::kNot;  // "running"
  if (waits_for_events(call)) return ThreadSleep::kForEvents;
  if (call != SYS_futex) return ThreadSleep::kNot;
  words >> std::hex >> address >> operation >> value >> timeout;
  return words.fail() ? ThreadSleep::kNot : sleep_on_futex(operation, timeout);
}

// Who has not moved between two looks has slept at the moment between them, together with all others.
ThreadSleeps sleeps_of_threads() {
  const std::map<pid_t, Look> before = look_at_all();
  ThreadSleeps sleeps;
  for (const auto& [thread, look] : look_at_all()) {
    const ThreadSleep sleep = sleep_of(look.call);
    const auto earlier = before.find(thread);
    const bool moved = earlier == before.end() || earlier->second != look || look.switches.empty();
    sleeps[thread] = sleep == ThreadSleep::kForOthers && moved ? ThreadSleep::kNot : sleep;
  }
  return sleeps;
}

}  // namespace hvd
