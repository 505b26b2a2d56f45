#include "cuda/settings.h"

#include <cstdlib>
#include <mutex>
#include <sstream>

namespace fake_cuda {
namespace {

struct Failure {
  std::string function;
  Result code;
  int calls_left;
};

// Never destroyed: threads may call while the process ends.
struct State {
  Settings settings;
  std::mutex mutex;
  std::vector<Call*> calls;
  std::vector<Failure> failures;
  std::string wrong_uses;
  std::atomic<bool> may_fail{false};
  std::atomic<bool> initialized{false};
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

bool take_word(State& state, const std::string& word) {
  const std::vector<std::string> parts = split(word, ':');
  const auto number = [&](size_t i) { return static_cast<int>(std::strtol(parts[i].c_str(), nullptr, 10)); };
  if (parts.empty()) return true;
  if (parts[0] == "strict") {
    state.settings.strict = true;
  } else if (parts[0] == "version" && parts.size() == 2) {
    state.settings.version = number(1);
  } else if (parts[0] == "host" && parts.size() == 2) {
    state.settings.host = number(1);
  } else if (parts[0] == "delay_us" && parts.size() == 2) {
    state.settings.delay_us = number(1);
  } else if (parts[0] == "fail" && (parts.size() == 3 || parts.size() == 4)) {
    state.failures.push_back({parts[1], number(2), parts.size() == 4 ? number(3) : 1});
    state.may_fail = true;
  } else {
    return false;
  }
  return true;
}

bool take(State& state, const std::string& specification) {
  const std::lock_guard lock(state.mutex);
  bool understood = true;
  for (const std::string& word : split(specification, ',')) understood = take_word(state, word) && understood;
  return understood;
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

State* make_state() {
  auto* state = new State;
  state->settings.version = version_of_library();
  const std::string count = from_environment("HVD_FAKE_CUDA_DEVICES");
  const int num_devices = count.empty() ? 4 : static_cast<int>(std::strtol(count.c_str(), nullptr, 10));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    for (const std::string& word : split(visible, ',')) {
      const int index = static_cast<int>(std::strtol(word.c_str(), nullptr, 10));
      if (index < 0 || index >= num_devices) break;
      state->settings.devices.push_back(index);
    }
  } else {
    for (int i = 0; i < num_devices; ++i) state->settings.devices.push_back(i);
  }
  const std::string specification = from_environment("HVD_FAKE_CUDA");
  if (!take(*state, specification)) state->wrong_uses = "HVD_FAKE_CUDA is not understood: " + specification + "\n";
  return state;
}

State& the_state() {
  static State* const state = make_state();
  return *state;
}

}  // namespace

Settings& settings() { return the_state().settings; }

bool configure(const std::string& specification) { return take(the_state(), specification); }

void reset_settings() {
  State& state = the_state();
  const std::lock_guard lock(state.mutex);
  state.failures.clear();
  state.may_fail = false;
  state.wrong_uses.clear();
  state.settings.version = version_of_library();
  state.settings.host = 0;
  state.settings.delay_us = 0;
  state.settings.strict = false;
  for (Call* call : state.calls) call->count_ = 0;
}

void note_wrong_use(const std::string& text) {
  const std::lock_guard lock(the_state().mutex);
  the_state().wrong_uses += text + "\n";
}

std::string wrong_uses() {
  const std::lock_guard lock(the_state().mutex);
  return the_state().wrong_uses;
}

Call::Call(const char* name) : name_(name) {
  const std::lock_guard lock(the_state().mutex);
  the_state().calls.push_back(this);
}

Result Call::begin(bool needs_init) {
  count_.fetch_add(1, std::memory_order_relaxed);
  if (in_host_function()) {
    note_wrong_use(std::string(name_) + " was called by a function of the host that a stream runs");
    return kNotPermitted;
  }
  State& state = the_state();
  if (needs_init && !state.initialized.load(std::memory_order_acquire)) return kNotInitialized;
  if (!state.may_fail.load(std::memory_order_relaxed)) return kSuccess;
  const std::lock_guard lock(state.mutex);
  for (Failure& failure : state.failures) {
    if (failure.function == name_ && --failure.calls_left == 0) return failure.code;
  }
  return kSuccess;
}

void Call::initialize() { the_state().initialized.store(true, std::memory_order_release); }

int64_t Call::count_of(const std::string& name) {
  const std::lock_guard lock(the_state().mutex);
  for (const Call* call : the_state().calls) {
    if (name == call->name_) return call->count_;
  }
  return 0;
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

}  // namespace fake_cuda
