// What not all members of a process set take part in: sends and receives, process sets that their members ask for, and
// the end of a membership.
#include <algorithm>
#include <functional>
#include <span>

#include "engine/agreement/negotiator.h"

namespace hvd {

// Negative if it is no member.
int Negotiator::set_rank_of(int rank) const {
  if (options_.members.empty()) return rank < static_cast<int>(member_names_.size()) ? rank : -1;
  const auto found = std::find(options_.members.begin(), options_.members.end(), rank);
  return found == options_.members.end() ? -1 : static_cast<int>(found - options_.members.begin());
}

void Negotiator::add_transfer(int member, Announcement announcement, TimePoint now) {
  RequestSpec& spec = announcement.spec;
  note_last(member, spec.name, announcement.site, now);
  Pairing::Half half{.member = member, .peer = spec.root < 0 ? -1 : set_rank_of(spec.root), .spec = std::move(spec)};
  if (half.spec.root >= 0 && half.peer < 0) half.peer = static_cast<int>(member_names_.size());  // which is refused
  half.site = sites_[static_cast<size_t>(member)].at(announcement.site);
  half.priority = announcement.priority;
  half.payload = std::move(announcement.payload);
  const std::optional<Duration> waited = pairing_.add(std::move(half), member_names_, now);
  if (waited) {
    note_wait(*waited, now);
    last_ready_ = now;
  }
  if (!transfers_left_.empty()) pairing_.fail(transfers_left_);
}

void Negotiator::member_withdrew(int member, const std::string& end) {
  if (!withdrawn_.insert(member).second) {
    throw Error(ErrorKind::kInternal, member_names_[static_cast<size_t>(member)] + " left its process set twice");
  }
  pairing_.leave(member, end, static_cast<int>(member_names_.size()));
  end_collectives(end);
}

std::vector<Directed> Negotiator::take_directed() {
  std::vector<Directed> taken = std::exchange(directed_, {});
  for (Directed& answer : pairing_.take_answers()) taken.push_back(std::move(answer));
  return taken;
}

void Negotiator::check_asker(int member, const RequestSpec& spec) const {
  const std::span<const int64_t> askers = spec.askers();
  const auto size = static_cast<int64_t>(member_names_.size());
  const bool changes = spec.kind == OpKind::kAddProcessSet || spec.kind == OpKind::kRemoveProcessSet;
  const bool rise = std::adjacent_find(askers.begin(), askers.end(), std::greater_equal<>()) == askers.end();
  const bool exist = !askers.empty() && askers.front() >= 0 && askers.back() < size;
  const bool is_asker = std::find(askers.begin(), askers.end(), member) != askers.end();
  if (changes && rise && exist && is_asker && options_.is_job && !spec.cacheable) return;
  throw Error(ErrorKind::kInternal, member_names_[static_cast<size_t>(member)] +
                                        " asks for a process set that it cannot ask for: " + spec.name);
}

bool Negotiator::was_refused(int member, const Announcement& announcement) {
  if (!announcement.spec.by_members) return false;
  check_asker(member, announcement.spec);
  const auto refused = refused_sets_.find(announcement.spec.name);
  if (refused == refused_sets_.end() || refused->second.untold.erase(member) == 0) return false;
  const std::string& site = sites_[static_cast<size_t>(member)].at(announcement.site);
  Response response;
  response.kind = Response::Kind::kError;
  response.names.emplace_back().name = announcement.spec.name;
  response.error_kind = ErrorKind::kMismatch;
  response.message = refused->second.message + "\n  " + member_names_[static_cast<size_t>(member)] + " sent " +
                     announcement.spec.describe(site);
  directed_.push_back({member, std::move(response)});
  if (refused->second.untold.empty()) refused_sets_.erase(refused);
  return true;
}

// Nobody waits for the rest to see that the ranks do not agree: those of one list might wait for each other for ever.
void Negotiator::take_by_members(Entry& entry, TimePoint now) {
  const Slot& first = first_slot(entry);
  const bool agree = std::all_of(entry.slots.begin(), entry.slots.end(),
                                 [&](const Slot& slot) { return !slot.announced || slot.digest == first.digest; });
  if (agree) {
    take_if_ready(entry, now);
  } else {
    refuse_sets(entry);
  }
}

void Negotiator::refuse_sets(Entry& entry) {
  RefusedSet refused;
  const std::optional<Response> error = disagreement(entry);
  refused.message = error->message;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    const Slot& slot = entry.slots[member];
    if (!slot.announced) continue;
    directed_.push_back({static_cast<int>(member), *error});
    for (const int64_t asker : spec_of(entry, slot).askers()) refused.untold.insert(static_cast<int>(asker));
  }
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    if (entry.slots[member].announced) refused.untold.erase(static_cast<int>(member));
  }
  if (!refused.untold.empty()) refused_sets_[entry.name] = std::move(refused);
  reset(entry);
}

}  // namespace hvd
