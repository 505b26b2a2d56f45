#include "engine/agreement/negotiator.h"

#include <algorithm>

#include "engine/submission/check.h"

namespace hvd {
namespace {

constexpr size_t kMostInlineBytes = 4096;
constexpr size_t kMostInlineBytesOfAll = 32768;
// A wait of the past, such as that for a validation on one rank, is expected again for about this long.
constexpr Duration kWaitHalfLife = std::chrono::minutes(10);

}  // namespace

bool may_travel_with_announcement(const RequestSpec& spec, int num_members, bool is_on_one_host) {
  // The host does not read the memory of a GPU.
  if (spec.kind != OpKind::kAllreduce || spec.reduce_op == ReduceOp::kAdasum || spec.on_gpu) return false;
  // Whether a caller waits must not change a result. Inside of a host nothing is quantized.
  if (spec.quantization != Quantization::kNone && !is_on_one_host) return false;
  const size_t bytes = spec.total_bytes();
  return bytes <= kMostInlineBytes && bytes * static_cast<size_t>(num_members) <= kMostInlineBytesOfAll;
}

bool may_be_sent_with_announcement(const RequestSpec& spec) { return spec.total_bytes() <= kMostInlineBytes; }

Negotiator::Negotiator(std::vector<std::string> member_names, NegotiatorOptions options)
    : member_names_(std::move(member_names)),
      options_(std::move(options)),
      sites_(member_names_.size(), {std::string()}),
      last_(member_names_.size()),
      joined_(member_names_.size(), false) {}

Negotiator::Entry& Negotiator::entry_of(const std::string& name) {
  std::unique_ptr<Entry>& entry = entries_[name];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
    entry->name = name;
    entry->slots.resize(member_names_.size());
  }
  return *entry;
}

bool Negotiator::announce(int member, Announcement&& announcement, TimePoint now) {
  note_site(member, announcement);
  Entry* entry = nullptr;
  if (announcement.full) {
    check_received(announcement.spec, member_names_[static_cast<size_t>(member)]);
    if (traits_of(announcement.spec.kind).is_transfer) {
      add_transfer(member, std::move(announcement), now);
      return true;
    }
    if (was_refused(member, announcement)) return true;
    entry = &entry_of(announcement.spec.name);
  } else {
    if (announcement.id >= ids_.size()) return false;
    entry = ids_[announcement.id];
    if (entry->digest != announcement.digest) return false;
  }
  const Slot& slot = fill_slot(*entry, member, std::move(announcement), now);
  const OpKind kind = spec_of(*entry, slot).kind;
  const uint64_t unnamed = spec_of(*entry, slot).unnamed;
  if (!left_.empty()) {
    answers_.push_back(error_for(*entry, ErrorKind::kShutDown, entry->name + " failed: " + left_));
    reset(*entry);
  } else if (kind == OpKind::kJoin) {
    member_joined(member, now);
  } else if (spec_of(*entry, slot).by_members) {
    take_by_members(*entry, now);
  } else if (unnamed != 0) {
    take_unnamed(*entry, member, now);
  } else {
    take_if_ready(*entry, now);
  }
  return true;
}

void Negotiator::note_site(int member, const Announcement& announcement) {
  std::vector<std::string>& sites = sites_[static_cast<size_t>(member)];
  if (!announcement.new_site.empty() && announcement.site == sites.size()) sites.push_back(announcement.new_site);
  if (announcement.site >= sites.size()) {
    throw Error(ErrorKind::kInternal, member_names_[static_cast<size_t>(member)] + " announced an unknown call site");
  }
}

Negotiator::Slot& Negotiator::fill_slot(Entry& entry, int member, Announcement&& announcement, TimePoint now) {
  Slot& slot = entry.slots[static_cast<size_t>(member)];
  if (slot.announced || entry.ready) {  // ready without it: it has joined
    throw Error(ErrorKind::kInternal,
                member_names_[static_cast<size_t>(member)] + " announced " + entry.name + " twice");
  }
  slot.announced = true;
  slot.digest = announcement.digest;
  if (announcement.full) slot.spec = std::make_unique<RequestSpec>(std::move(announcement.spec));
  slot.site = announcement.site;
  slot.weight = announcement.weight;
  slot.priority = announcement.priority;
  slot.device = announcement.device;
  slot.extents = std::move(announcement.extents);
  slot.expected = std::move(announcement.expected);
  slot.place = announcement.place;
  slot.payload = std::move(announcement.payload);
  note_last(member, entry.name, slot.site, now);
  if (entry.num_announced++ == 0) {
    entry.waited.first = now;
    ++num_pending_;
  }
  return slot;
}

void Negotiator::note_last(int member, const std::string& name, uint32_t site, TimePoint now) {
  Last& last = last_[static_cast<size_t>(member)];
  last.name = name;
  last.site = site;
  last.time = now;
}

// From now on names become ready without this member.
void Negotiator::member_joined(int member, TimePoint now) {
  Entry& join = entry_of(kJoinName);
  joined_[static_cast<size_t>(member)] = true;
  const bool all = spec_of(join, join.slots[static_cast<size_t>(member)]).divide_by_initial_world_size;
  all_averaged_ = num_joined_ == 0 ? all : (all_averaged_ || all);
  last_joined_ = member;
  ++num_joined_;
  std::vector<Entry*> waiting;
  for (const auto& [name, entry] : entries_) {
    if (entry.get() != &join && entry->num_announced > 0 && !entry->ready) waiting.push_back(entry.get());
  }
  // In the order in which they were announced: all ranks execute alike anyway, but early tensors are needed early.
  std::sort(waiting.begin(), waiting.end(), [](const Entry* a, const Entry* b) {
    return a->waited.first != b->waited.first ? a->waited.first < b->waited.first : a->name < b->name;
  });
  for (Entry* entry : waiting) take_if_ready(*entry, now);
  join_ready_ = num_joined_ == static_cast<int>(joined_.size());
}

bool Negotiator::is_complete(const Entry& entry) const {
  const RequestSpec& spec = spec_of(entry, first_slot(entry));
  if (spec.by_members) return entry.num_announced == static_cast<int>(spec.askers().size());
  if (entry.num_announced == static_cast<int>(entry.slots.size())) return true;
  if (num_joined_ == 0) return false;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    if (!entry.slots[member].announced && !joined_[member]) return false;
  }
  return true;
}

void Negotiator::take_if_ready(Entry& entry, TimePoint now) {
  if (!is_complete(entry)) return;
  note_wait(now - entry.waited.first, now);
  last_ready_ = now;
  take_ready(entry);
}

void Negotiator::note_wait(Duration wait, TimePoint now) {
  if (wait >= usual_wait_) {
    usual_wait_ = wait;
    usual_wait_noted_ = now;
  } else if (now - usual_wait_noted_ > kWaitHalfLife) {
    usual_wait_ /= 2;
    usual_wait_noted_ = now;
  }
}

// Operations without a name are matched by their number, so one number cannot stand for different operations. Nobody
// needs to wait for the others to see that the ranks took different ways.
void Negotiator::take_unnamed(Entry& entry, int member, TimePoint now) {
  const uint64_t number = spec_of(entry, entry.slots[static_cast<size_t>(member)]).unnamed;
  auto refused = refused_.find(number);
  if (refused == refused_.end()) {
    const auto [pending, is_first] = unnamed_.try_emplace(number, entry.name);
    if (is_first || pending->second == entry.name) {
      take_if_ready(entry, now);
      return;
    }
    const auto found = entries_.find(pending->second);
    if (found == entries_.end() || found->second->num_announced == 0 || found->second->ready) {
      throw Error(ErrorKind::kInternal, member_names_[static_cast<size_t>(member)] + " announced " + entry.name +
                                            " under a number that stands for something else");
    }
    Entry& other = *found->second;
    refused = refused_.emplace(number, Refused{{}, std::vector<bool>(member_names_.size(), false)}).first;
    refused->second.message =
        "Mismatched operations: operations without a name are matched by the order in which a "
        "rank submits them, and number " +
        std::to_string(number) + " is not the same on all ranks." + requests_of(other) + requests_of(entry);
    for (size_t i = 0; i < other.slots.size(); ++i) {
      if (other.slots[i].announced) refused->second.told[i] = true;
    }
    answers_.push_back(error_for(other, ErrorKind::kMismatch, refused->second.message));
    reset(other);
  }
  std::vector<bool>& told = refused->second.told;
  told[static_cast<size_t>(member)] = true;
  answers_.push_back(error_for(entry, ErrorKind::kMismatch, refused->second.message));
  if (std::all_of(told.begin(), told.end(), [](bool one) { return one; })) refused_.erase(refused);
  reset(entry);
}

void Negotiator::member_left(const std::string& end) {
  if (!transfers_left_.empty()) return;  // nothing is pending any more, and the first cause counts
  transfers_left_ = end;
  pairing_.fail(end);
  end_collectives(end);
}

void Negotiator::end_collectives(const std::string& end) {
  if (!left_.empty()) return;
  left_ = end;
  ready_.clear();
  join_ready_ = false;
  std::vector<Entry*> pending;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_announced > 0) pending.push_back(entry.get());
  }
  for (Entry* entry : pending) {
    answers_.push_back(error_for(*entry, ErrorKind::kShutDown, entry->name + " failed: " + left_));
    reset(*entry);
  }
}

void Negotiator::reset(Entry& entry) {
  const auto announced =
      std::find_if(entry.slots.begin(), entry.slots.end(), [](const Slot& slot) { return slot.announced; });
  if (announced != entry.slots.end()) unnamed_.erase(spec_of(entry, *announced).unnamed);
  for (Slot& slot : entry.slots) slot = Slot();
  entry.num_announced = 0;
  entry.ready = false;
  entry.waited = {};
  --num_pending_;
  if (entry.id < 0) entries_.erase(std::string(entry.name));
}

std::vector<Negotiator::Late> Negotiator::late(TimePoint now) {
  std::vector<Late> found;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_announced == 0 || entry->ready) continue;
    found.push_back({.waited = &entry->waited, .age = age_of(*entry, now), .name = &entry->name, .entry = entry.get()});
  }
  for (Pairing::Half* half : pairing_.waiting()) {
    const Duration age = now - half->waited.first;
    found.push_back({.waited = &half->waited, .age = age, .name = &half->spec.name, .half = half});
  }
  return found;
}

std::vector<Stall> Negotiator::take_stalls(TimePoint now, Duration patience, Purpose purpose, bool again) {
  const auto is_due = [&](const Late& one) {
    const Waited& waited = *one.waited;
    return one.age >= patience &&
           (purpose == Purpose::kProbe ? one.age >= waited.next_probe : again || !waited.reported);
  };
  std::vector<Late> partial = late(now);
  if (std::none_of(partial.begin(), partial.end(), is_due)) return {};
  if (purpose == Purpose::kWarning) {  // what was announced a moment ago only looks late
    std::erase_if(partial, [&](const Late& one) { return one.age < patience / 10; });
  }
  std::sort(partial.begin(), partial.end(), [](const Late& a, const Late& b) {
    return a.waited->first != b.waited->first ? a.waited->first < b.waited->first : *a.name < *b.name;
  });
  const Duration oldest = partial.front().age;
  std::vector<Stall> stalls;
  for (const Late& one : partial) {
    if (purpose == Purpose::kProbe) {
      one.waited->next_probe = std::max(one.waited->next_probe, 2 * oldest);
    } else {
      one.waited->reported = true;
    }
    stalls.push_back(stall_of(one, now));
  }
  return stalls;
}

std::vector<Stall> Negotiator::stalls(TimePoint now) const {
  std::vector<Stall> stalls;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_announced > 0 && !entry->ready) stalls.push_back(stall_of(*entry, now));
  }
  for (const Pairing::Half* half : pairing_.waiting()) stalls.push_back(stall_of(*half, now));
  std::sort(stalls.begin(), stalls.end(),
            [](const Stall& a, const Stall& b) { return a.age != b.age ? a.age > b.age : a.name < b.name; });
  return stalls;
}

std::string Negotiator::last_announced(int member, TimePoint now) const {
  const Last& last = last_[static_cast<size_t>(member)];
  if (last.name.empty()) return {};
  const std::string& site = sites_[static_cast<size_t>(member)].at(last.site);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - last.time).count();
  return last.name + (site.empty() ? "" : " at " + site) + ", " + std::to_string(seconds) + " s ago";
}

void Negotiator::mark_reported() {
  for (const auto& [name, entry] : entries_) {
    if (entry->num_announced == 0 || entry->ready) continue;
    entry->waited.reported = true;
    entry->waited.next_probe = Duration::max();
  }
  for (Pairing::Half* half : pairing_.waiting()) {
    half->waited.reported = true;
    half->waited.next_probe = Duration::max();
  }
}

bool Negotiator::is_waiting(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second->num_announced > 0 && !found->second->ready;
  const std::vector<const Pairing::Half*> halves = pairing_.waiting();
  return std::any_of(halves.begin(), halves.end(), [&](const Pairing::Half* half) { return half->spec.name == name; });
}

bool Negotiator::is_ready(const std::string& name) const {
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second->ready;
}

// To wait in join() while others work is what it is for, so only the time without any work counts.
Duration Negotiator::age_of(const Entry& entry, TimePoint now) const {
  const bool is_join = spec_of(entry, first_slot(entry)).kind == OpKind::kJoin;
  return now - (is_join ? std::max(entry.waited.first, last_ready_) : entry.waited.first);
}

Stall Negotiator::stall_of(const Late& late, TimePoint now) const {
  return late.entry != nullptr ? stall_of(*late.entry, now) : stall_of(*late.half, now);
}

Stall Negotiator::stall_of(const Entry& entry, TimePoint now) const {
  Stall stall{.name = entry.name, .waiting = {}, .call_sites = {}, .missing = {}, .age = age_of(entry, now)};
  const RequestSpec& spec = spec_of(entry, first_slot(entry));
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    const Slot& slot = entry.slots[member];
    if (slot.announced) {
      stall.waiting.push_back(static_cast<int>(member));
      stall.call_sites.push_back(site_of(member, slot));
    } else if (spec.by_members) {
      const std::span<const int64_t> askers = spec.askers();
      const bool is_asker = std::find(askers.begin(), askers.end(), global_rank(member)) != askers.end();
      if (is_asker) stall.missing.push_back(static_cast<int>(member));
    } else if (!joined_[member]) {
      stall.missing.push_back(static_cast<int>(member));
    }
  }
  return stall;
}

// Of a receive from any member, each of the others may be the one that comes.
Stall Negotiator::stall_of(const Pairing::Half& half, TimePoint now) const {
  Stall stall{.name = half.spec.name,
              .waiting = {half.member},
              .call_sites = {half.site},
              .missing = {},
              .age = now - half.waited.first};
  if (half.peer >= 0) {
    stall.missing.push_back(half.peer);
    return stall;
  }
  for (int member = 0; member < static_cast<int>(member_names_.size()); ++member) {
    if (member != half.member) stall.missing.push_back(member);
  }
  return stall;
}

}  // namespace hvd
