// SPDX-License-Identifier: Apache-2.0
// Schedules for the networks of tests.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plan/schedules/detached_parts.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/networks.hpp"
#include "support/rounds.hpp"

namespace starpipe {

/// A schedule of the network's whole stages, with `each` workers for each of its workers. Shards of the
/// vocabulary run where there is time.
inline plan::Schedule sharded_schedule(plan::Schedule whole, const model::Network& network, int each) {
  if (whole.discipline() != plan::Discipline::ordered) whole = plan::ordered_as_simulated(whole, {});
  plan::Schedule sharded = plan::with_parts(whole, network.graph, network.parts, each);
  if (network.config.vocabulary.shards == 1) return sharded;
  return plan::with_detached_where_free(sharded, network.parts, {}, 1);
}

/// The named schedule, with a worker for each shard.
inline plan::Schedule sharded_schedule(const char* name, const model::Network& network, int workers,
                                       int microbatches) {
  const plan::StageGraph chain = plan::StageGraph::chain(network.whole_stages());
  const plan::ScheduleRequest request{.workers = workers, .microbatches = microbatches, .graph = chain};
  return sharded_schedule(plan::make_schedule(name, request), network, network.shards());
}

/// Every registered schedule for `workers`, with as many stages and groups as it asks for.
struct NamedCase {
  std::string name;
  model::Network network;
  plan::Schedule schedule;
};

/// Returns a case per schedule; under a sanitizer, a case for every fifth schedule, others in each call of a
/// process. `make_network`: makes a network by its number of stages, with shards by its number of whole
/// stages. `slices`: of each micro-batch, as the network has them.
inline std::vector<NamedCase> named_cases(
    int workers, int microbatches,
    const std::function<model::Network(int)>& make_network = [](int stages) { return tiny_gpt(stages); },
    int slices = 1) {
  static int calls = 0;
  int left_out = calls++ % round_stride;
  std::vector<NamedCase> cases;
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    if (left_out-- > 0) continue;
    left_out = round_stride - 1;
    std::optional<NamedCase> found;
    std::string problem;
    for (const int stages : {workers, 2 * workers}) {
      for (const int groups : {0, workers % 2 == 0 ? 2 : 1}) {
        for (const int count : {microbatches, 2 * workers}) {
          if (found) continue;
          plan::ScheduleRequest request{.workers = workers, .microbatches = count, .slices = slices};
          if (groups > 0) request.groups = groups;
          try {
            model::Network network = make_network(stages);
            request.graph = plan::StageGraph::chain(network.whole_stages());
            found.emplace(NamedCase{entry.name, network, plan::make_schedule(entry.name, request)});
          } catch (const InputError& error) {
            problem += error.what() + std::string("; ");
          }
        }
      }
    }
    // Bidirectional schedules pair a pipeline that goes up with one that goes down.
    const bool needs_even = problem.find("even number of workers") != std::string::npos;
    const bool needs_multiple = problem.find("slices: slimpipe needs a multiple") != std::string::npos;
    EXPECT_TRUE(found || (needs_even && workers % 2 != 0) || (needs_multiple && slices % workers != 0))
        << entry.name << ": no test case fits it: " << problem;
    if (found) cases.push_back(std::move(*found));
  }
  return cases;
}

}  // namespace starpipe
