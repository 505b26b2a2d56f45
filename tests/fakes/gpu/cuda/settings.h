// What a test has asked for, by configure() or by the environment.
//
// HVD_FAKE_CUDA_DEVICES=2         as many GPUs; 4 without it
// HVD_FAKE_CUDA=word,word,...     of:
//   version:12080                 what cuDriverGetVersion says
//   strict                        host memory of copies must be that of cuMemHostAlloc
//   host:7                        uuids of another machine's GPUs
//   delay_us:200                  streams pause before all that they do
//   fail:cuMemHostAlloc:2:3       the third call from now gives code 2; further ones do not
// CUDA_VISIBLE_DEVICES=2,0        as the driver takes it; numbers only
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cuda/codes.h"

namespace fake_cuda {

[[nodiscard]] int version_of_library();  // version.cc

struct Settings {
  std::vector<int> devices;  // those that are visible, by their numbers on the machine
  std::atomic<int> version{0};
  std::atomic<int> host{0};
  std::atomic<int> delay_us{0};
  std::atomic<bool> strict{false};
};
[[nodiscard]] Settings& settings();

// Returns whether all words were understood.
bool configure(const std::string& specification);
void reset_settings();

// Something that a real driver punishes late or never, and a test should see.
void note_wrong_use(const std::string& text);
[[nodiscard]] std::string wrong_uses();

// A function of the driver: counts its calls and fails where a test wants it.
class Call {
 public:
  explicit Call(const char* name);
  // What has to be said before all else: injected errors, calls from functions of the host, missing cuInit.
  [[nodiscard]] Result begin(bool needs_init = true);
  [[nodiscard]] const char* name() const { return name_; }

  static void initialize();
  [[nodiscard]] static int64_t count_of(const std::string& name);

 private:
  friend void reset_settings();
  const char* name_;
  std::atomic<int64_t> count_{0};
};

// Whether this thread is one of a stream that calls a function of the program.
bool& in_host_function();

}  // namespace fake_cuda
