// SPDX-License-Identifier: Apache-2.0
// Networks and schedules on which the task graph of a step is tried.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "support/network_schedules.hpp"
#include "support/networks.hpp"
#include "support/random_schedules.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime::testing {

struct GraphCase {
  std::string label;
  model::Network network;
  plan::Schedule schedule;
};

/// Calls `check` for every named schedule and for many others, until a check fails.
inline void for_each_case(const std::function<void(const GraphCase&)>& check) {
  std::vector<GraphCase> cases;
  for (const int microbatches : {1, 3, 6}) {
    for (NamedCase& named : named_cases(4, microbatches)) {
      cases.push_back({named.name, named.network, named.schedule});
      cases.push_back({named.name + ", split", named.network, split(named.schedule)});
      cases.push_back(
          {named.name + ", greedy", named.network, named.schedule.with(plan::Discipline::greedy)});
      cases.push_back({named.name + ", recompute", named.network, named.schedule.with_recomputation()});
      if (named.schedule.discipline() == plan::Discipline::ordered) {
        const auto host = [](int, int) { return plan::Home::host; };
        cases.push_back({named.name + ", copies", named.network, named.schedule.with_homes(host)});
        cases.push_back({named.name + ", peers", named.network, named.schedule.with_homes([](int s, int b) {
                           return plan::Home::at((s + b) % 4);
                         })});
        cases.push_back(
            {named.name + ", split, copies", named.network, split(named.schedule).with_homes(host)});
      }
    }
    for (NamedCase& named : named_cases(4, microbatches, tied_gpt))
      cases.push_back({named.name + ", tied", named.network, named.schedule});
  }
  for (const auto& of : {std::pair("gpt", 3), std::pair("llama", 2)}) {
    const std::string kind = of.first;
    const int slices = of.second;
    const auto network = [&](int stages) { return sliced(kind, stages, slices); };
    for (NamedCase& named : named_cases(4, 2, network, slices)) {
      cases.push_back({named.name + ", slices", named.network, named.schedule});
      cases.push_back({named.name + ", slices, split", named.network, split(named.schedule)});
      cases.push_back({named.name + ", slices everywhere", named.network, slices_everywhere(named.schedule)});
    }
  }
  for (const std::vector<int>& shards : {std::vector{2}, std::vector{4}, std::vector{2, 4}}) {
    const model::Network network = sharded_gpt(2, shards);
    for (const char* name : {"1f1b", "fsdp"}) {
      const plan::Schedule schedule = sharded_schedule(name, network, 2, 3);
      cases.push_back({std::string(name) + ", sharded", network, schedule});
      cases.push_back({std::string(name) + ", sharded, split", network, split(schedule)});
      cases.push_back({std::string(name) + ", sharded, recompute", network, schedule.with_recomputation()});
    }
  }
  const model::Network towers = two_towers();
  const model::Network shards = sharded_gpt(2, {2});
  const model::Network tied = tied_gpt(4);
  const model::Network tied_llama = tiny_llama(4, model::Precision::fp32, true);
  const model::Network chain = tiny_mlp(4);
  const model::Network tree = tiny_mlp(5, 2);
  const model::Network dag = dag_network({5, {{0, 2}, {1, 2}, {0, 3}, {2, 3}, {2, 4}, {3, 4}}});
  const model::Network bare = dag_network(plan::StageGraph::chain(3), true);
  for (const bool is_split : {false, true}) {
    for (const auto& [label, network] :
         {std::pair{"chain", &chain}, std::pair{"tree", &tree}, std::pair{"dag", &dag},
          std::pair{"shards", &shards}, std::pair{"bare", &bare}, std::pair{"towers", &towers},
          std::pair{"tied gpt", &tied}, std::pair{"tied llama", &tied_llama}}) {
      for (const int workers : {1, 2, 4}) {
        const plan::Schedule schedule = scattered(network->graph, workers, 5, is_split);
        cases.push_back({std::string("scattered ") + label, *network, schedule});
        cases.push_back(
            {std::string("scattered ") + label + ", recompute", *network, schedule.with_recomputation()});
      }
      plan::Schedule replicas =
          plan::make_schedule("ddp", {.workers = 3, .microbatches = 4, .graph = network->graph});
      cases.push_back({std::string("ddp ") + label, *network, is_split ? split(replicas) : replicas});
      plan::Schedule sharded =
          plan::make_schedule("fsdp", {.workers = 3, .microbatches = 4, .graph = network->graph});
      cases.push_back({std::string("fsdp ") + label, *network, is_split ? split(sharded) : sharded});
    }
  }
  const std::size_t named_count = cases.size();
  std::mt19937_64 random(7);
  while (cases.size() < named_count + 100) {
    plan::Schedule schedule(plan::testing::random_spec(random, {.copies = true, .sound_priority = 1}));
    if (!plan::check(schedule).ok()) continue;
    if (cases.size() % 2 == 0 && !schedule.copies()) schedule = schedule.with_recomputation();
    cases.push_back({"random " + std::to_string(cases.size()), dag_network(schedule.graph()), schedule});
  }
  for (const GraphCase& one : cases) {
    SCOPED_TRACE(one.label);
    check(one);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace starpipe::runtime::testing
