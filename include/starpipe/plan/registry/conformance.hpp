// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace starpipe::plan {

/// What a conformance stage found, in words for the author of the schedule.
struct Finding {
  enum class Verdict { passed, failed, does_not_apply };
  Verdict verdict = Verdict::passed;
  std::string words;
};

std::string_view to_string(Finding::Verdict verdict);

/// One stage of the checks of a named schedule. Each asks for it at many sizes and expects a sound schedule
/// or an InputError that says why not.
struct ConformanceStage {
  std::string_view name;
  /// Throws nothing but what the standard library does without memory. Does not return when the
  /// schedule's function does not.
  Finding (*run)(std::string_view schedule);
};

/// In order:
///   chain           workers 1 to 8, micro-batches 1 to 16, chains of several lengths, groups and
///                   placements: as asked for, twice the same, accepted by `check`, simulated
///   graph           a tree of stages (several encoder legs), likewise
///   split backward  where B and W are apart: simulated with unequal passes, W is there for each B
///   memory limit    finishes under the smallest limit that `check` accepts, and keeps it
///   replicas        where weights have several holders: each gets each contribution to the gradient once
/// What they find is O(1) in words; each takes well under a second unless the schedule's function is slow.
std::span<const ConformanceStage> conformance_stages();

}  // namespace starpipe::plan
