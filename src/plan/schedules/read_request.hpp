// SPDX-License-Identifier: Apache-2.0
// What the named schedules share: reading the request.
#pragma once

#include <functional>
#include <string_view>

#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::plan {

/// The requested stage graph, or a chain of one stage a worker.
StageGraph requested_graph(const ScheduleRequest& request);

/// w of schedules that give each stage to one worker, which holds its weights and computes all its jobs:
/// stage s on worker s, or as `stage_workers` says. Throws InputError when stages and workers do not
/// match, or when the request has groups.
std::function<Placement(const Job&)> by_stage(std::string_view name, const ScheduleRequest& request,
                                              const StageGraph& graph);

/// The requested graph of schedules that place the stages of a chain themselves, `chunks` on each worker.
/// Throws InputError for a graph that is not a chain of `chunks * workers` stages, or with groups or a
/// placement.
StageGraph requested_chain(std::string_view name, const ScheduleRequest& request, int chunks);
/// How many stages of the requested chain each worker has. Throws InputError as `requested_chain`, or when
/// the workers do not divide the stages.
int requested_chunks(std::string_view name, const ScheduleRequest& request);

/// The requested costs, or unit costs.
Costs requested_costs(const ScheduleRequest& request);

/// Throws InputError when the request names a worker for each stage: `name` places by micro-batch.
void refuse_stage_workers(std::string_view name, const ScheduleRequest& request);
/// Throws InputError when the request has groups.
void refuse_groups(std::string_view name, const ScheduleRequest& request);
/// R of W = G * R. Throws InputError without groups, or when they do not divide the workers.
int workers_per_group(std::string_view name, const ScheduleRequest& request);

}  // namespace starpipe::plan
