// What the members of a process set announce to a negotiator, for its tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/negotiator.h"
#include "testing/check.h"
#include "testing/manual_clock.h"

namespace hvd {

constexpr int64_t kLarge = 4096;  // elements: too many to travel with the announcement

inline RequestSpec make_spec(const std::string& name, int64_t count = kLarge) {
  RequestSpec spec;
  spec.name = name;
  spec.tensors = {{DType::kFloat32, {count}}};
  return spec;
}

inline Announcement in_full(const RequestSpec& spec) {
  Announcement announcement;
  announcement.spec = spec;
  announcement.digest = spec.digest();
  return announcement;
}

inline Announcement by_id(uint32_t id, const RequestSpec& spec) {
  Announcement announcement;
  announcement.full = false;
  announcement.id = id;
  announcement.digest = spec.digest();
  return announcement;
}

template <typename T>
Announcement with_values(const RequestSpec& spec, const std::vector<T>& values) {
  Announcement announcement = in_full(spec);
  announcement.payload.resize(values.size() * sizeof(T));
  std::memcpy(announcement.payload.data(), values.data(), announcement.payload.size());
  return announcement;
}

struct Members {
  explicit Members(int size, NegotiatorOptions options = {})
      : size(size), negotiator(names(size), std::move(options)), sites(static_cast<size_t>(size)) {}

  static std::vector<std::string> names(int size) {
    std::vector<std::string> all;
    for (int rank = 0; rank < size; ++rank)
      all.push_back("rank " + std::to_string(rank) + " (host:" + std::to_string(rank) + ")");
    return all;
  }
  bool announce_at(int member, const RequestSpec& spec, const std::string& site) {
    Announcement announcement = in_full(spec);
    std::vector<std::string>& known = sites[static_cast<size_t>(member)];
    const auto found = std::find(known.begin(), known.end(), site);
    announcement.site = static_cast<uint32_t>(found - known.begin()) + 1;
    if (found == known.end()) {
      announcement.new_site = site;
      known.push_back(site);
    }
    return announce(member, std::move(announcement));
  }
  bool announce(int member, Announcement announcement) {
    return negotiator.announce(member, std::move(announcement), clock.now());
  }
  void announce_all(const RequestSpec& spec) {
    for (int member = 0; member < size; ++member) CHECK(announce(member, in_full(spec)));
  }
  std::vector<Response> take(const Room& room = {}) { return negotiator.take_responses(room); }
  // All members submit; returns the number that the name has now.
  int64_t agree(const std::string& name) {
    announce_all(make_spec(name));
    const std::vector<Response> responses = take();
    REQUIRE(responses.size() == 1);
    REQUIRE(responses[0].kind == Response::Kind::kExecute);
    return responses[0].names.at(0).new_id;
  }

  int size;
  testing::ManualClock clock;
  Negotiator negotiator;
  std::vector<std::vector<std::string>> sites;  // of each member, in the order of their numbers
};

}  // namespace hvd
