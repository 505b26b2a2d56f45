#include "engine/submission/submission.h"

#include <pthread.h>

#include <algorithm>
#include <span>

#include "engine/submission/check.h"

namespace hvd {
namespace {

// How long the engine's thread lets a caller submit more before it begins.
constexpr Duration kGatherTime = std::chrono::microseconds(100);

void check_shared_memory(const Operation& operation) {
  if (operation.request.process_set != 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": memory is shared by all ranks of the job");
  }
  if (operation.spec.ranks.size() != 1 || operation.spec.ranks.front() <= 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": needs a positive number of bytes");
  }
}

}  // namespace

Submission::Submission(const JobInfo& job, const Doorbell& doorbell, Counters& counters)
    : job_(job), counters_(counters), queue_(Queue{.doorbell = &doorbell}) {}

void Submission::describe(Operation& operation) {
  const SubmitRequest& request = operation.request;
  RequestSpec& spec = operation.spec;
  spec.kind = request.kind;
  spec.reduce_op = request.reduce_op;
  spec.quantization = request.quantization;
  spec.prescale = request.prescale;
  spec.postscale = request.postscale;
  spec.root = request.root;
  spec.weighted = request.weight.has_value();
  spec.ranks = request.ranks;
  spec.divide_by_initial_world_size = request.divide_by_initial_world_size;
  spec.by_members = request.by_members;
  spec.tag = request.tag;
  // Sets of that name come and go, and each transfer has a name of its own.
  const bool is_transfer = traits_of(request.kind).is_transfer;
  if (request.by_members || is_transfer) spec.cacheable = false;
  if (request.name) {
    spec.name = request.prefix.empty() ? *request.name : request.prefix + "." + *request.name;
    return;
  }
  if (is_transfer) {
    spec.name = request.prefix.empty() ? name_of(request.kind) : request.prefix;
    return;
  }
  spec.name = (request.prefix.empty() ? name_of(request.kind) : request.prefix) + std::string(".noname");
  // There is one barrier, and one join, of a process set at a time, so that they have one name.
  if (request.kind == OpKind::kBarrier || request.kind == OpKind::kJoin) return;
  spec.cacheable = false;
}

// Ranks that had joined have not counted what the others did meanwhile, so all count anew after a join.
void Submission::count(Operation& operation) {
  if (operation.spec.cacheable || operation.spec.by_members) return;
  const Locked<Queue> queue = queue_.lock();
  const auto found = queue->memberships.find(operation.request.process_set);
  const bool known = found != queue->memberships.end();
  if (traits_of(operation.spec.kind).is_transfer) {  // its name is that of no other, on any rank
    const uint64_t number = known ? ++found->second.num_transfers : 1;
    operation.spec.name += "." + std::to_string(job_.rank) + "." + std::to_string(number);
    return;
  }
  operation.spec.unnamed = known ? found->second.num_joins << 32 | ++found->second.num_unnamed : 1;
  operation.spec.name += "." + std::to_string(operation.spec.unnamed);
}

void Submission::submit(const std::shared_ptr<Operation>& operation) {
  const Locked<Queue> queue = queue_.lock();
  refuse_if_ended(*queue, *operation);
  Membership& set = membership_of(*queue, operation->request.process_set, operation->spec.name);
  check(*queue, set, *operation);
  set.in_flight.emplace(operation->spec.name, operation);
  operation->state.submitted = job_.clock->now();
  queue->last.name = operation->spec.name;
  queue->last.call_site = operation->request.call_site;
  queue->last.time = operation->state.submitted;
  queue->newest = operation.get();
  queue->waits_since = operation->state.submitted;
  ++queue->num_in_flight;
  const uint64_t thread = pthread_self();
  if (std::exchange(queue->last_submitter, thread) != thread) queue->submitters.insert(thread);
  queue->operations.push_back(operation);
  counters_.submitted.fetch_add(1, std::memory_order_relaxed);
  if (call_for(*queue, *operation)) return;
  queue->operations.pop_back();
  --queue->num_in_flight;
  set.in_flight.erase(operation->spec.name);
  throw closed_descriptors(job_);
}

// A program that submits one tensor after the other wakes the engine's thread once in a while, not for each: to wake a
// thread takes longer than to submit, and what waits together is agreed on and fused together.
bool Submission::call_for(Queue& queue, const Operation& operation) {
  if (operation.request.waits_next || (operation.request.gathers && queue.gathers)) {
    queue.doorbell->note();
    return true;
  }
  queue.gathers = operation.request.gathers && queue.doorbell->ring_in(kGatherTime);
  return queue.gathers || queue.doorbell->ring();
}

void Submission::refuse_if_ended(const Operation& operation) const { refuse_if_ended(*queue_.lock(), operation); }

void Submission::refuse_if_ended(const Queue& queue, const Operation& operation) {
  const std::string& name = operation.spec.name;
  if (queue.failure) throw Error(queue.failure->kind(), name + " was not submitted: " + queue.failure->what());
  if (!queue.closing) return;
  throw Error(ErrorKind::kShutDown, name + " was not submitted: Horovod has been shut down here");
}

std::vector<int> Submission::members_of(uint32_t set, const std::string& what) {
  const Locked<Queue> queue = queue_.lock();
  return membership_of(*queue, set, what).members;
}

Submission::Membership& Submission::membership_of(Queue& queue, uint32_t set, const std::string& what) const {
  const auto found = queue.memberships.find(set);
  if (found == queue.memberships.end() || found->second.closing) {
    throw Error(ErrorKind::kUsage, what + ": its process set does not exist; it was removed");
  }
  if (found->second.set_rank < 0) {
    std::string members;
    for (const int member : found->second.members) members += (members.empty() ? "" : ", ") + std::to_string(member);
    throw Error(ErrorKind::kUsage,
                what + ": " + job_.name_of_rank(job_.rank) + " is not a member of the process set of ranks " + members);
  }
  return found->second;
}

void Submission::check(Queue& queue, Membership& set, Operation& operation) const {
  operation.state.set_rank = set.set_rank;
  check_operation(operation, set.members);
  operation.state.digest = operation.spec.digest();
  if (const auto first = set.in_flight.find(operation.spec.name); first != set.in_flight.end()) {
    const std::string& site = first->second->request.call_site;
    throw Error(ErrorKind::kDuplicateName, operation.spec.name + " is still in flight" +
                                               (site.empty() ? "" : ", submitted at " + site) +
                                               "; wait for it, or give the second operation another name");
  }
  const OpKind kind = operation.spec.kind;
  if (kind == OpKind::kShareMemory) check_shared_memory(operation);
  const bool changes_sets = kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet;
  if (changes_sets && operation.request.process_set != 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": process sets are changed by all ranks of the job");
  }
  if (operation.spec.by_members) check_by_members(operation);
  if (kind == OpKind::kAddProcessSet) check_new_process_set(operation);
  if (kind == OpKind::kRemoveProcessSet) check_removal(queue, operation);
}

void Submission::check_new_process_set(const Operation& operation) const {
  const std::vector<int64_t>& ranks = operation.spec.ranks;
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::kUsage, "add_process_set: " + what); };
  if (ranks.empty()) refuse("a process set needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= job_.size) {
      refuse("rank " + std::to_string(ranks[i]) + " does not exist; the size of the job is " +
             std::to_string(job_.size));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) refuse("rank " + std::to_string(ranks[i]) + " is in the list twice");
    if (i > 0 && ranks[i] < ranks[i - 1]) refuse("the ranks must rise");
  }
}

void Submission::check_by_members(const Operation& operation) const {
  const OpKind kind = operation.spec.kind;
  const std::string& name = operation.spec.name;
  if (kind != OpKind::kAddProcessSet && kind != OpKind::kRemoveProcessSet) {
    throw Error(ErrorKind::kUsage, name + ": by_members is for process sets that come or go");
  }
  if (!operation.request.name) throw Error(ErrorKind::kUsage, name + ": needs a name that its members agree on");
  const std::span<const int64_t> askers = operation.spec.askers();
  if (std::find(askers.begin(), askers.end(), job_.rank) != askers.end()) return;
  throw Error(ErrorKind::kUsage, name + ": " + job_.name_of_rank(job_.rank) +
                                     " is not one of the ranks that it lists; only those may call");
}

// From now on nothing more may be submitted to the set here.
void Submission::check_removal(Queue& queue, const Operation& operation) {
  const std::vector<int64_t>& ids = operation.spec.ranks;
  const bool fits = operation.spec.by_members ? !ids.empty() : ids.size() == 1;
  const auto found = fits ? queue.memberships.find(static_cast<uint32_t>(ids.front())) : queue.memberships.end();
  const std::span<const int64_t> askers = operation.spec.askers();
  const bool exists = found != queue.memberships.end() && found->first != 0 && !found->second.closing;
  if (!exists || (operation.spec.by_members && !std::equal(askers.begin(), askers.end(), found->second.members.begin(),
                                                           found->second.members.end()))) {
    throw Error(ErrorKind::kUsage,
                "remove_process_set: there is no such process set, or it is the one of all ranks, which stays");
  }
  found->second.closing = true;
}

void Submission::wake() {
  const Locked<Queue> queue = queue_.lock();
  if (queue->doorbell != nullptr) queue->doorbell->ring();  // also while closing: the thread may rely on it
}

void Submission::leave(uint32_t set, std::string call_site) {
  const Locked<Queue> queue = queue_.lock();
  if (queue->failure || queue->closing) return;  // all process sets end with the engine
  const auto found = queue->memberships.find(set);
  const bool is_member = found != queue->memberships.end() && !found->second.closing && found->second.set_rank >= 0;
  if (set == 0 || !is_member) {
    throw Error(ErrorKind::kUsage, job_.name_of_rank(job_.rank) + " cannot leave process set " + std::to_string(set) +
                                       ": it is not a member, has left it, or the set is that of all ranks");
  }
  found->second.closing = true;
  queue->leaves.push_back({set, std::move(call_site)});
  queue->doorbell->ring();
}

void Submission::give_up(const std::shared_ptr<Operation>& operation, std::string text) {
  const Locked<Queue> queue = queue_.lock();
  if (queue->failure || queue->closing || operation->done()) return;
  queue->given_up.push_back({operation, std::move(text)});
  queue->doorbell->ring();
}

Submission::Taken Submission::take() {
  const Locked<Queue> queue = queue_.lock();
  queue->gathers = false;
  return {std::exchange(queue->operations, {}), std::exchange(queue->leaves, {}), std::exchange(queue->given_up, {})};
}

void Submission::release(const Operation& operation, bool failed) {
  const Locked<Queue> queue = queue_.lock();
  const auto set = queue->memberships.find(operation.request.process_set);
  if (set != queue->memberships.end()) {
    if (set->second.in_flight.erase(operation.spec.name) > 0) count_wait(*queue, operation);
    if (operation.spec.kind == OpKind::kJoin) {
      ++set->second.num_joins;
      set->second.num_unnamed = 0;
    }
  }
  if (failed && operation.spec.kind == OpKind::kRemoveProcessSet) {  // the ranks did not agree: it stays
    queue->memberships.at(static_cast<uint32_t>(operation.spec.ranks.front())).closing = false;
  }
}

// Who waits for others has submitted all that it can for now: the time until what it submitted last has ended, or all
// has. Time in which operations end behind a rank that computes is not counted, as it goes on submitting.
void Submission::count_wait(Queue& queue, const Operation& ended) {
  --queue.num_in_flight;
  if (&ended != queue.newest && queue.num_in_flight > 0) return;
  const TimePoint now = job_.clock->now();
  const Duration waited = now - std::exchange(queue.waits_since, now);
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count();
  counters_.waited_ns.fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
}

void Submission::add_process_set(uint32_t id, std::vector<int> members, int set_rank) {
  queue_.lock()->memberships[id] = {.members = std::move(members), .set_rank = set_rank};
}

void Submission::remove_process_set(uint32_t id) { queue_.lock()->memberships.erase(id); }

bool Submission::is_idle(uint32_t set) const { return queue_.lock()->memberships.at(set).in_flight.empty(); }

bool Submission::is_leaving(uint32_t set) const { return queue_.lock()->memberships.at(set).closing; }

Submission::Last Submission::last() const { return queue_.lock()->last; }

std::optional<std::set<uint64_t>> Submission::submitters_if_empty() const {
  const Locked<const Queue> queue = queue_.lock();
  return queue->operations.empty() ? std::optional(queue->submitters) : std::nullopt;
}

std::vector<std::shared_ptr<Operation>> Submission::fail(const Error& error) {
  const Locked<Queue> queue = queue_.lock();
  queue->failure = error;
  queue->leaves.clear();
  queue->given_up.clear();
  return std::exchange(queue->operations, {});
}

std::optional<Error> Submission::failure() const { return queue_.lock()->failure; }

void Submission::close(const std::string& reason) {
  const Locked<Queue> queue = queue_.lock();
  queue->closing = reason;
  queue->doorbell->ring();
}

std::optional<std::string> Submission::closing() const { return queue_.lock()->closing; }

bool Submission::is_closing() const { return queue_.lock()->closing.has_value(); }

void Submission::forget_doorbell() { queue_.lock()->doorbell = nullptr; }

}  // namespace hvd
