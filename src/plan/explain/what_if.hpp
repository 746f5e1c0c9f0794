// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A change to a recorded step. As text TARGET=VALUE:
/// - comm=0, comm=0.5x: all transfers; link.0-1=0.5x: the transfers from worker 0 to worker 1
/// - worker.2=median, worker.2=0.5x: the jobs that worker 2 ran
/// - stage.3=0.5x, stage.3.F=0.5x, stage.3.BW=median: the jobs of stage 3, of one pass
/// - copy=0, copy=0.5x: the copies of stashes to their homes and back, O and L
/// - runtime=0, runtime=0.5x: the runtime's own part of the step
/// - schedule=zb-h1: another schedule
/// A factor is a number with an x, from 0x; 0 is the same as 0x. With `median`, each job takes the median
/// time of a unit of work, over all jobs of its pass.
struct WhatIf {
  enum class Target : std::uint8_t { comm, link, worker, stage, copy, runtime, schedule };
  std::string text;  ///< as given
  Target target = Target::comm;
  int first = 0;   ///< link: sender; worker, stage: its number
  int second = 0;  ///< link: receiver
  std::optional<Pass> pass = {};
  std::optional<double> factor = {};  ///< empty: the median. Unused with `schedule`
  std::string schedule = {};          ///< name
};

/// Throws InputError for any other text: one line that names --what-if, the text and what is possible.
WhatIf parse_what_if(std::string_view text);

/// Returns the makespan that the step would have had, in seconds: the jobs on the workers and in the order in
/// which they ran are simulated with the changed times, and the runtime's own part of the step is added.
/// A change without effect gives the measured makespan. `work`: as of `kernel_speeds`. Not for changes
/// of the schedule. Throws InputError as `parse_what_if` when the step has no such worker, stage, pass or
/// link. O(jobs log jobs).
double makespan_with(const RecordedStep& step, const WhatIf& change, std::span<const Durations> work);

/// Returns the makespan that the step would have had under `other`: simulated with the step's mean durations
/// and median transfer time (`costs_of`), and the runtime's own part of the step is added. When `other`
/// splits backward passes that the step ran fused, BW is divided in the ratio of the work of B and W. Throws
/// InputError, naming `text`, for a schedule with another number of stages, workers or micro-batches.
double makespan_under(const RecordedStep& step, const Schedule& other, std::span<const Durations> work,
                      std::string_view text);

/// Divides a backward pass that ran fused, whose time counts as B, in the ratio of the work of B and W. Does
/// nothing when W has a time, or when the work is not known.
void divide_backward(Durations& times, const Durations& work);

/// True if `makespan_under` must divide the step's BW.
bool splits_fused_backward(const RecordedStep& step, const Schedule& other);

}  // namespace starpipe::plan
