#include "nccl/injection.h"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#define FAKE_CUDA_INSIDE
#include "cuda_control.h"

namespace fake_nccl {
namespace {

struct Rule {
  Action action = Action::kNone;
  std::string call;
  int nth = 1;
  int rank = -1;
};

struct State {
  std::mutex mutex;
  std::vector<Rule> rules;
  std::map<std::string, int64_t> calls;
  int version = version_of_library();
  bool notices_peers = false;
  Launch launch = Launch::kInTurns;
  int64_t num_releases = 0;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

int number_of(const std::string& text) { return static_cast<int>(std::strtol(text.c_str(), nullptr, 10)); }

bool take_rule(State& state, std::string word) {
  Rule rule;
  if (const size_t at = word.find('@'); at != std::string::npos) {
    rule.rank = number_of(word.substr(at + 1));
    word.resize(at);
  }
  const std::vector<std::string> parts = split(word, ':');
  const std::map<std::string, Action> actions{
      {"fail", Action::kFail}, {"hang", Action::kHang}, {"async_error", Action::kAsyncError}};
  if (parts.size() < 2 || parts.size() > 3 || !actions.contains(parts[0])) return false;
  rule.action = actions.at(parts[0]);
  rule.call = parts[1];
  if (parts.size() == 3) rule.nth = number_of(parts[2]);
  state.rules.push_back(rule);
  return rule.nth > 0;
}

bool take_word(State& state, const std::string& word) {
  if (word.starts_with("version:")) {
    state.version = number_of(word.substr(word.find(':') + 1));
  } else if (word == "peers:remote_error") {
    state.notices_peers = true;
  } else if (word == "launch:now" || word == "launch:later") {
    state.launch = word == "launch:now" ? Launch::kNow : Launch::kLater;
  } else {
    return take_rule(state, word);
  }
  return true;
}

bool take(State& state, const std::string& specification) {
  bool understood = true;
  for (const std::string& word : split(specification, ',')) understood = take_word(state, word) && understood;
  return understood;
}

// Never destroyed: threads may call while the process ends.
State& the_state() {
  static State* const state = [] {
    auto* made = new State;
    const char* value = std::getenv("HVD_FAKE_NCCL");
    const std::string specification = value == nullptr ? "" : value;
    if (!take(*made, specification)) {
      fake_cuda::fake_cuda_note_wrong_use("HVD_FAKE_NCCL is not understood: " + specification);
    }
    return made;
  }();
  return *state;
}

void forget_rules(State& state) {
  state.rules.clear();
  state.version = version_of_library();
  state.notices_peers = false;
  state.launch = Launch::kInTurns;
}

}  // namespace

bool configure(const std::string& specification) {
  State& state = the_state();
  const std::lock_guard lock(state.mutex);
  if (specification.empty()) forget_rules(state);
  return take(state, specification);
}

void release() {
  const std::lock_guard lock(the_state().mutex);
  ++the_state().num_releases;
}

void reset() {
  State& state = the_state();
  const std::lock_guard lock(state.mutex);
  forget_rules(state);
  state.calls.clear();
  ++state.num_releases;
}

int version() {
  const std::lock_guard lock(the_state().mutex);
  return the_state().version;
}

bool notices_peers() {
  const std::lock_guard lock(the_state().mutex);
  return the_state().notices_peers;
}

Launch launch() {
  const std::lock_guard lock(the_state().mutex);
  return the_state().launch;
}

Action action_for(const std::string& call, int nth, int rank) {
  State& state = the_state();
  const std::lock_guard lock(state.mutex);
  for (const Rule& rule : state.rules) {
    if (rule.call == call && rule.nth == nth && (rule.rank < 0 || rule.rank == rank)) return rule.action;
  }
  return Action::kNone;
}

void hang(const std::function<bool()>& ends) {
  const auto num_releases = [] {
    const std::lock_guard lock(the_state().mutex);
    return the_state().num_releases;
  };
  const int64_t before = num_releases();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!ends() && num_releases() == before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void count_call(const char* function) {
  const std::lock_guard lock(the_state().mutex);
  ++the_state().calls[function];
}

int64_t calls_of(const std::string& function) {
  const std::lock_guard lock(the_state().mutex);
  const auto found = the_state().calls.find(function);
  return found == the_state().calls.end() ? 0 : found->second;
}

}  // namespace fake_nccl
