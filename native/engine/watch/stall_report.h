// The words in which a stall is told: a pure function of what is known of it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/agreement/negotiator.h"
#include "engine/messages/position_report.h"

namespace hvd {

// Names are written as `name_of(set rank)` says. `positions` is by set rank: where the missing ranks are.
[[nodiscard]] std::string stall_report(const std::string& headline, const std::vector<Stall>& stalls,
                                       const std::map<int, PositionReport>& positions,
                                       const std::function<std::string(int)>& name_of);

}  // namespace hvd
