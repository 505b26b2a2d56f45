// How the threads of this process sleep, as the system tells it: whether a program that waits in a framework can go on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace hvd {

enum class ThreadSleep : uint8_t {
  kNot,        // it runs, or waits for a disk, a peer, another process, or for what nobody knows
  kForEvents,  // until a time comes, in an event loop, or on a futex of any process: as a framework's housekeeping does
  kForOthers,  // until another thread of this process wakes it
};

using ThreadSleeps = std::map<pid_t, ThreadSleep>;

// `line`: of /proc/<pid>/task/<tid>/syscall (proc(5)).
[[nodiscard]] ThreadSleep sleep_of(const std::string& line);

// Of all threads of this process at one moment. Who cannot be looked at does not sleep.
[[nodiscard]] ThreadSleeps sleeps_of_threads();

}  // namespace hvd
