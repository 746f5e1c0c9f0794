// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::plan {

// How the named schedules read a request, and refuse the parts that they cannot follow.

/// w of schedules in which one worker of a group holds a stage's weights and computes the group's jobs: stage
/// s on worker s of the group, or on `stage_workers[s]` of the request. Micro-batch b goes to group b mod G;
/// without groups, G is 1. Throws InputError when stages and workers do not match, or when G does not divide
/// the workers.
std::function<Placement(const Job&)> by_stage(std::string_view name, const ScheduleRequest& request,
                                              const StageGraph& graph);

/// Returns the requested graph of schedules that place the stages of a chain themselves, `chunks` on each
/// worker. Throws InputError for a graph that is not a chain of `chunks * workers` stages, or with groups or
/// a placement.
StageGraph requested_chain(std::string_view name, const ScheduleRequest& request, int chunks);
/// Returns the number of stages of the requested chain on each worker. Throws InputError as
/// `requested_chain`, or if the number of stages is not a multiple of the number of workers.
int requested_chunks(std::string_view name, const ScheduleRequest& request);

/// Returns the requested costs; if none are requested, passes that all take 1 and free transfers.
Costs requested_costs(const ScheduleRequest& request);

/// Throws InputError when the request has groups.
void refuse_groups(std::string_view name, const ScheduleRequest& request);
/// Returns R of W = G * R. Throws InputError when the request has no groups G, or G does not divide W.
int workers_per_group(std::string_view name, const ScheduleRequest& request);

}  // namespace starpipe::plan
