// SPDX-License-Identifier: Apache-2.0
#pragma once

// Transfers between workers follow from w alone, so nothing here depends on time.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Number and total size of the data of one kind that a worker received from others.
struct Received {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Received&, const Received&) = default;
};

/// Everything that one worker receives in a step, from other workers and from homes of stashes. A datum that
/// the worker receives once and keeps is counted once. Examples: an activation that two of the worker's jobs
/// read; the weights of a stage, which serve all micro-batches of the step. Weights of one stage from two
/// holders are two data.
struct Transfers {
  Received activations;            ///< outputs of preceding stages, for F and R
  Received stashes;                ///< stashes for B and W, and gradient stashes for W
  Received gradients;              ///< gradients of succeeding stages, for B and for R that waits for them
  Received keys_values;            ///< of slices before, for F and B (attention)
  Received keys_values_gradients;  ///< what the slice after hands back, for B
  Received weights;                ///< weights from their holder, for F, R, B and BW
  Received weight_gradients;  ///< contributions to reductions on this worker, and finished sums from others
  Received reloads;           ///< stashes that L brings back from their homes; O took as many there

  /// Returns the sum over all kinds that come from other workers: without reloads.
  [[nodiscard]] Received total() const;
  friend bool operator==(const Transfers&, const Transfers&) = default;
};

/// One kind of transfers: its names, and the member of `Transfers` that counts it.
struct TransferKind {
  std::string_view key;    ///< in JSON
  std::string_view label;  ///< in tables
  Received Transfers::*member;
  bool always_shown;  ///< by `schedule` and `train`, even when no worker receives any
};
/// The only list of the kinds, in the order of all reports.
inline constexpr std::array<TransferKind, 8> transfer_kinds = {
    {{"activations", "activations", &Transfers::activations, true},
     {"gradients", "gradients", &Transfers::gradients, true},
     {"weights", "weights", &Transfers::weights, true},
     {"stashes", "stashes", &Transfers::stashes, false},
     {"keys_values", "keys and values", &Transfers::keys_values, false},
     {"keys_values_gradients", "their gradients", &Transfers::keys_values_gradients, false},
     {"weight_gradients", "weight gradients", &Transfers::weight_gradients, false},
     {"reloads", "reloads", &Transfers::reloads, false}}};

/// False for kinds that the schedule cannot have: reloads without copies, keys and values without slices.
bool may_occur(const TransferKind& kind, const Schedule& schedule);

/// Returns, for each worker, the transfers of one step that `w` alone makes it receive (Unifying Schemes,
/// "Latency, network, and memory usage from w(s,b,d)"). O(jobs).
std::vector<Transfers> count_transfers(const Schedule& schedule, const Costs& costs);

/// Data that one worker sends another in a step: all kinds of `Transfers` together, except reloads.
struct Traffic {
  int from = 0;  ///< worker
  int to = 0;    ///< another worker
  Received sent;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// Returns one entry for each pair of a sender and a receiver of data, sorted by sender, then by receiver.
/// The sum over the senders of one receiver is its total in `count_transfers`, without reloads: a home is no
/// worker. O(jobs log workers).
std::vector<Traffic> count_traffic(const Schedule& schedule, const Costs& costs);

}  // namespace starpipe::plan
