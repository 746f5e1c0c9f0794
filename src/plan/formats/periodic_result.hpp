// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/schedules/chain.hpp"
#include "plan/schedules/pattern.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A question to the periodic theory, as `starpipe periodic` takes it.
struct PeriodicRequest {
  std::vector<ChainStage> chain = {};
  std::vector<int> workers = {};      ///< of each stage; empty when stage s is on worker s
  std::optional<double> memory = {};  ///< of each worker, for weights and stashes; nothing: no limit
  std::optional<int> repeat = {};     ///< patterns of up to so many micro-batches; nothing: 1
  std::optional<double> period = {};  ///< take 1F1B* with this period
};

struct PeriodicResult {
  PeriodicPattern pattern;
  /// Lower bound on the time a micro-batch, of all schedules with this placement and memory.
  double bound;
  /// No pattern of up to `best_of` micro-batches is shorter; 0: not proved.
  int best_of = 0;
};

/// The shortest pattern that the request allows. Throws RequestError for a period or a number of repetitions
/// beside workers, and when some worker would hold more than `memory`; else as `best_pattern`,
/// `stash_limits`, `one_forward_one_backward_star` and `busiest_worker_pattern` do.
PeriodicResult solve_periodic(const PeriodicRequest& request);

/// The costs of the chain for `simulate`: B is the whole backward pass, W takes no time.
Costs costs_of_chain(std::span<const ChainStage> chain);

/// {"pattern": {...}}: what the theory adds to the JSON of the unrolled schedule. Callers include
/// <nlohmann/json.hpp>.
nlohmann::ordered_json periodic_json(const PeriodicResult& result, std::span<const ChainStage> chain);

}  // namespace starpipe::plan
