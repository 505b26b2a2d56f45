#include "engine/watch/stall_report.h"

#include <sstream>

namespace hvd {
namespace {

constexpr size_t kMostStalls = 6;
constexpr size_t kMostNames = 6;
constexpr size_t kMostRanks = 8;

using NameOf = std::function<std::string(int)>;

// "rank 0 (a:1), rank 2 (b:7) at train.py:12; rank 1 (a:2) at train.py:14".
std::string submitters(const Stall& stall, const NameOf& name_of) {
  std::map<std::string, std::vector<int>> ranks_by_site;
  for (size_t i = 0; i < stall.waiting.size(); ++i) ranks_by_site[stall.call_sites[i]].push_back(stall.waiting[i]);
  std::ostringstream text;
  for (const auto& [site, ranks] : ranks_by_site) {
    text << (text.tellp() > 0 ? "; " : "");
    for (size_t i = 0; i < ranks.size() && i < kMostRanks; ++i) text << (i == 0 ? "" : ", ") << name_of(ranks[i]);
    if (ranks.size() > kMostRanks) text << " and " << ranks.size() - kMostRanks << " more";
    if (!site.empty()) text << " at " << site;
  }
  return text.str();
}

void write_stalls(std::ostringstream& text, const std::vector<Stall>& stalls, const NameOf& name_of) {
  for (size_t i = 0; i < stalls.size() && i < kMostStalls; ++i) {
    text << "\n  " << stalls[i].name << ": submitted by " << submitters(stalls[i], name_of);
  }
  if (stalls.size() > kMostStalls) text << "\n  and " << stalls.size() - kMostStalls << " more operations";
}

// Where a rank is, unless another one that was told of is at the same place.
void write_position(std::ostringstream& text, int rank, const PositionReport& position,
                    std::map<std::string, int>& ranks_by_stacks, const NameOf& name_of) {
  const bool has_stacks = !position.stacks.empty();
  const int first = has_stacks ? ranks_by_stacks.try_emplace(position.stacks, rank).first->second : rank;
  if (!position.activity.empty()) text << "\n  It " << position.activity << ".";
  if (!position.operations.empty()) text << "\n  It " << position.operations << ".";
  if (first != rank) {
    text << "\n  It is where " << name_of(first) << " is.";
    return;
  }
  std::istringstream stacks(position.stacks);
  for (std::string line; std::getline(stacks, line);) text << "\n    " << line;
}

// One line for each missing rank with the names of what it lacks, as Horovod has always told it, and then its position.
void write_missing(std::ostringstream& text, const std::vector<Stall>& stalls,
                   const std::map<int, PositionReport>& positions, const NameOf& name_of) {
  std::map<int, std::vector<std::string>> names_by_rank;
  for (const Stall& stall : stalls) {
    for (const int rank : stall.missing) names_by_rank[rank].push_back(stall.name);
  }
  std::map<std::string, int> ranks_by_stacks;
  for (const auto& [rank, names] : names_by_rank) {
    text << "\n" << name_of(rank) << ": [";
    for (size_t i = 0; i < names.size() && i < kMostNames; ++i) text << (i == 0 ? "" : ", ") << names[i];
    text << (names.size() > kMostNames ? ", …]" : "]");
    const auto position = positions.find(rank);
    if (position != positions.end()) write_position(text, rank, position->second, ranks_by_stacks, name_of);
  }
}

}  // namespace

std::string stall_report(const std::string& headline, const std::vector<Stall>& stalls,
                         const std::map<int, PositionReport>& positions, const NameOf& name_of) {
  std::ostringstream text;
  text << headline;
  write_stalls(text, stalls, name_of);
  text << "\nMissing ranks:";
  write_missing(text, stalls, positions, name_of);
  return text.str();
}

}  // namespace hvd
