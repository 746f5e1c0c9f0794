// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/home.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A chain of stages, each placed on one worker, to find an order for. The backward pass is split.
struct SearchProblem {
  int workers = 1;
  int microbatches = 1;  ///< each slice counts
  /// Slices K of a sequence (Schedule::slices). With K > 1 all stashes wait with their workers.
  int slices = 1;
  /// Worker of each stage. Every worker has at least one stage.
  std::vector<int> stage_workers = {0};
  /// Durations of each stage and costs of transfers. Transfers overlap compute.
  Costs costs = {};
  /// Memory of one stash of each stage, or one entry for all stages, in the unit of the limit. With slices:
  /// of each stage and slice, or one for all.
  std::vector<double> stash = {1};
  /// Largest memory of all stashes on a worker: one limit for all workers, or one for each.
  std::vector<double> memory_limits = {std::numeric_limits<double>::infinity()};
  /// True if a stash may have no home: R then makes it again, before B on the same worker.
  bool may_recompute = false;
  /// How long R takes, in F's time. 0: as if the stash came back from an ideal home, whose copies cost
  /// nothing.
  double remaking = 1;
  /// Home::host or Home::disk if stashes may also be copied there and back, over the link that `costs` has.
  /// Only the lower bound reads this: orders are found first, and their copies are chosen later.
  std::optional<Home> copies = {};
  /// True if stashes may also be copied to other workers, over the link `peer` of `costs`. Only the lower
  /// bound reads this, too.
  bool peers = false;

  [[nodiscard]] bool may_copy() const { return copies || peers; }
  /// True if every stash waits with its worker.
  [[nodiscard]] bool keeps_all() const { return !may_recompute && !may_copy(); }
};

/// Placement of a chain of W * C stages on W workers. Each worker has C stages, its chunks.
enum class Layout : std::uint8_t {
  loop,  ///< stage s on worker s mod W
  v,     ///< every second chunk of W stages runs from the last worker to the first
};

/// The layouts' words, in the order of the enum.
inline constexpr std::array<std::string_view, 2> layout_words = {"loop", "v"};
std::string_view to_string(Layout layout);
/// Reads the word that `to_string` writes. Throws InputError for an unknown word.
Layout parse_layout(std::string_view word);
/// Returns the worker of each of the `workers` * `chunks` stages.
std::vector<int> layout_workers(Layout layout, int workers, int chunks);

}  // namespace starpipe::plan
