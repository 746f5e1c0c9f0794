// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// One direction of the port of a member of a level (LinkLevel).
struct BusyPort {
  std::size_t level = 0;
  int member = 0;
  int first_worker = 0;  ///< of the member
  int last_worker = 0;
  bool out = false;
  double passing = 0;  ///< seconds that the bytes of the step's transfers need with the whole bandwidth
  double waited = 0;   ///< seconds in which workers were idle while a transfer through the port was under way
};

/// Returns the ports through which transfers of jobs pass, on levels with a bandwidth: the largest `passing`
/// first. Each datum passes once for each rank that reads it. Sums of gradients do not count. `costs`: of the
/// prediction.
std::vector<BusyPort> busy_ports(const RecordedStep& step, const Costs& costs);

/// Returns the port in words: "out of rank 1 (workers 2 to 3) at network".
std::string to_string(const BusyPort& port, const Links& links);

}  // namespace starpipe::plan
