// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/read_request.hpp"

#include <iterator>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

StageGraph requested_chain(std::string_view name, const ScheduleRequest& request, int chunks) {
  refuse_groups(name, request);
  if (!request.stage_workers.empty()) {
    throw RequestError(fmt::format("placement: {} has a placement of its own", name));
  }
  const StageGraph& graph = request.graph.value();
  if (!graph.is_chain()) throw InputError(fmt::format("{} is defined for a chain of stages only", name));
  if (graph.size() != chunks * request.workers) {
    throw RequestError(fmt::format("stages: {} has {} per worker: {} workers need {} stages, not {}", name,
                                   counted_text(chunks, "stage"), request.workers, chunks * request.workers,
                                   graph.size()));
  }
  return graph;
}

int requested_chunks(std::string_view name, const ScheduleRequest& request) {
  const int stages = request.graph.value().size();
  if (stages % request.workers != 0) {
    throw RequestError(fmt::format(
        "stages: {} has the same number of stages on each worker: {} stages do not divide by {} workers",
        name, stages, request.workers));
  }
  requested_chain(name, request, stages / request.workers);
  return stages / request.workers;
}

std::function<Placement(const Job&)> by_stage(std::string_view name, const ScheduleRequest& request,
                                              const StageGraph& graph) {
  const int groups = request.groups.value_or(1);
  const int per_group = request.groups ? workers_per_group(name, request) : request.workers;
  std::vector<int> workers = request.stage_workers;
  if (workers.empty()) {
    if (graph.size() != per_group) {
      throw RequestError(
          fmt::format("stages: {} puts one stage on each worker{}, but there are {} and {} "
                      "(a placement can put them elsewhere)",
                      name, groups > 1 ? " of a group" : "", counted_text(graph.size(), "stage"),
                      counted_text(per_group, "worker")));
    }
    for (int s = 0; s < graph.size(); ++s) workers.push_back(s);
  }
  if (static_cast<int>(workers.size()) != graph.size()) {
    throw RequestError(fmt::format("placement: has workers for {}, but there are {}",
                                   counted_text(std::ssize(workers), "stage"), graph.size()));
  }
  for (std::size_t s = 0; s < workers.size(); ++s) {
    if (workers[s] >= 0 && workers[s] < per_group) continue;
    throw RequestError(
        fmt::format("placement: puts stage {} on worker {}, which does not exist (workers 0..{}{})", s,
                    workers[s], per_group - 1, groups > 1 ? " of a group" : ""));
  }
  return [workers = std::move(workers), groups, per_group](const Job& job) {
    const int worker = job.microbatch % groups * per_group + workers[index(job.stage)];
    return Placement{.weights = worker, .compute = worker};
  };
}

Costs requested_costs(const ScheduleRequest& request) { return request.costs ? *request.costs : Costs{}; }

void refuse_groups(std::string_view name, const ScheduleRequest& request) {
  if (request.groups)
    throw RequestError(fmt::format("groups: {} has no groups (1f1b, gpipe, lpp and others have)", name));
}

int workers_per_group(std::string_view name, const ScheduleRequest& request) {
  if (!request.groups) {
    throw RequestError(fmt::format("groups: {} needs the number of groups G (W = G * R)", name));
  }
  const int groups = *request.groups;
  if (groups < 1 || request.workers < 1 || request.workers % groups != 0) {
    throw RequestError(fmt::format("groups: {}: {} workers are not {} equal groups (W = G * R)", name,
                                   request.workers, groups));
  }
  return request.workers / groups;
}

}  // namespace starpipe::plan
