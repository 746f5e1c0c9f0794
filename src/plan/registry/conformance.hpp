// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace starpipe::plan {

/// The result of a conformance step, with a message for the author of the schedule.
struct Finding {
  enum class Outcome { passed, failed, does_not_apply };
  Outcome outcome = Outcome::passed;
  std::string message;
};

std::string_view to_string(Finding::Outcome outcome);

/// One step of the conformance checks. It requests the schedule at many sizes, and expects either a sound
/// schedule or an InputError that gives the reason.
struct ConformanceStep {
  std::string_view name;
  /// Takes the name of a schedule. Throws only std::bad_alloc and its like. Never returns if the schedule's
  /// function never returns.
  Finding (*run)(std::string_view schedule);
};

/// In order:
///   default         4 workers, 8 micro-batches and nothing else (two groups, if the schedule must have
///   groups):
///                   it fails when the schedule is refused
///   options         the same with the smallest value of each option, its default and the next one
///   chain           1 to 8 workers, 1 to 16 micro-batches, chains of several lengths, groups and placements:
///                   the schedule has the size requested, is the same when requested twice, passes `check`
///                   and can be simulated
///   graph           the same for trees of stages (several encoder branches)
///   split backward  where B and W are two jobs: simulated with unequal passes, no W starts before its B ends
///   memory limit    the schedule finishes under the smallest limit that `check` accepts, and keeps the limit
///   replicas        where weights have several holders: each gets each contribution to the gradient once
/// Messages have bounded length. Each step takes well under a second unless the schedule's function is slow.
std::span<const ConformanceStep> conformance_steps();

}  // namespace starpipe::plan
