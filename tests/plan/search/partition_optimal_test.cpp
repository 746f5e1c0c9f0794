// SPDX-License-Identifier: Apache-2.0
// Partitions of small requests are the best of all that there are.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/partition.hpp"
#include "plan/search/partition_requests.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {
namespace {

using ::testing::EndsWith;

struct Value {
  double bottleneck = 0;
  double memory = 0;  ///< the largest of a worker
  bool keeps_limits = true;
};

/// Adds the memory of weights that units share: the worker of the first unit has all of them, the others have
/// copies.
void add_shared(const PartitionRequest& request, const std::vector<int>& owner, std::vector<double>& memory) {
  for (const SharedUnits& set : request.shared) {
    double gradients = 1;  // a worker's own one, or those that it receives
    for (std::size_t max = 2; max < set.units.size(); max *= 2) ++gradients;
    const auto updated = static_cast<double>(set.updated());
    std::set<int> workers;
    for (const int unit : set.units) workers.insert(owner[index(unit)]);
    const int first = owner[index(set.units.front())];
    for (const int w : workers) memory[index(w)] += static_cast<double>(set.weights) + gradients * updated;
    memory[index(first)] += static_cast<double>(set.master) + request.optimizer_states * updated;
    if (workers.size() > 1) memory[index(first)] += updated;
  }
}

/// The loads by their definition: unit by unit, without prefix sums.
Value by_definition(const PartitionRequest& request, const std::vector<int>& cuts,
                    const std::vector<int>& stage_workers) {
  std::vector<double> load(index(request.workers), 0);
  std::vector<double> memory = load;
  const std::size_t stages = stage_workers.size();
  std::size_t stage = 0;
  for (std::size_t l = 0; l < request.units.size(); ++l) {
    const UnitCosts& unit = request.units[l];
    if (stage < cuts.size() && index(cuts[stage]) == l) {
      const auto from = index(stage_workers[stage++]);
      const auto to = index(stage_workers[stage]);
      const StageSizes& sent = request.units[l - 1].sizes;
      if (from != to) {
        const Link link = request.links.between(stage_workers[stage - 1], stage_workers[stage]);
        load[to] += link.alpha + link.beta * static_cast<double>(sent.activation);
        load[from] += link.alpha + link.beta * static_cast<double>(sent.gradient);
      }
    }
    const auto w = index(stage_workers[stage]);
    const std::size_t following = std::min(stages - 1 - stage, request.stashes.size() - 1);
    const Durations& time = unit.on(request.kinds.empty() ? 0 : request.kinds[w]);
    load[w] += time.F + time.B + time.W;
    memory[w] += static_cast<double>(unit.sizes.weights) * (2 + request.optimizer_states) +
                 static_cast<double>(unit.sizes.stash) * request.stashes[following];
  }
  Partition partition;
  partition.cuts = cuts;
  partition.stage_workers = stage_workers;
  add_shared(request, owners(partition, request.units.size()), memory);
  bool keeps_limits = true;
  for (std::size_t w = 0; w < memory.size(); ++w) {
    const std::vector<double>& limits = request.memory_limits;
    keeps_limits = keeps_limits && memory[w] <= limits[limits.size() == 1 ? 0 : w];
  }
  return {*std::ranges::max_element(load), *std::ranges::max_element(memory), keeps_limits};
}

/// Calls f(cuts) for all ways to cut the units into `stages` stages.
template <class Function>
void for_all_cuts(int units, int stages, std::vector<int> cuts, Function&& f) {
  if (static_cast<int>(cuts.size()) + 1 == stages) return f(cuts);
  for (int cut = cuts.empty() ? 1 : cuts.back() + 1; cut < units; ++cut) {
    cuts.push_back(cut);
    for_all_cuts(units, stages, cuts, f);
    cuts.pop_back();
  }
}

struct Best {
  double bottleneck = infinity;  ///< within the memory limit
  double memory = infinity;      ///< the smallest possible
};

/// The best of all partitions that the request allows, by enumeration.
Best brute_force(const PartitionRequest& request) {
  Best best;
  const auto consider = [&](const std::vector<int>& cuts, const std::vector<int>& workers) {
    const Value value = by_definition(request, cuts, workers);
    best.memory = std::min(best.memory, value.memory);
    if (value.keeps_limits) best.bottleneck = std::min(best.bottleneck, value.bottleneck);
  };
  const int units = static_cast<int>(request.units.size());
  if (request.allocation == Allocation::placed) {
    for_all_cuts(units, static_cast<int>(request.stage_workers.size()), {},
                 [&](const std::vector<int>& cuts) { consider(cuts, request.stage_workers); });
  } else if (request.allocation == Allocation::contiguous) {
    for (unsigned used = 1; used < 1U << static_cast<unsigned>(request.workers); ++used) {
      std::vector<int> workers;
      for (int w = 0; w < request.workers; ++w) {
        if ((used >> static_cast<unsigned>(w) & 1U) != 0) workers.push_back(w);
      }
      if (static_cast<int>(workers.size()) > units) continue;
      // Stage s is on worker s where links differ.
      if (request.links.levels().size() > 1 && workers.back() + 1 != std::ssize(workers)) continue;
      for_all_cuts(units, static_cast<int>(workers.size()), {},
                   [&](const std::vector<int>& cuts) { consider(cuts, workers); });
    }
  } else {
    std::vector<int> owner(index(units), 0);
    for (bool more = true; more;) {
      std::vector<int> cuts;
      std::vector<int> workers = {owner[0]};
      for (std::size_t l = 1; l < owner.size(); ++l) {
        if (owner[l] == owner[l - 1]) continue;
        cuts.push_back(static_cast<int>(l));
        workers.push_back(owner[l]);
      }
      if (static_cast<int>(workers.size()) <= request.max_stages.value_or(units)) consider(cuts, workers);
      more = false;
      for (int& w : owner) {
        if (++w < request.workers) {
          more = true;
          break;
        }
        w = 0;
      }
    }
  }
  return best;
}

/// Compares `partition` with all partitions, without a memory limit and with several limits.
void expect_optimal(PartitionRequest request, RandomRequests& random) {
  SCOPED_TRACE(::testing::Message() << request.units.size() << " units, " << request.workers << " workers");
  const std::size_t units = request.units.size();
  const double min = brute_force(request).memory;
  std::vector<double> limits = {infinity};
  if (min > 0) {
    limits.push_back(min);
    limits.push_back(min + random.number(1, 20));
  }
  for (const double limit : limits) {
    request.memory_limits = {limit};
    const Partition found = partition(request);
    const Value value = by_definition(request, found.cuts, found.stage_workers);
    EXPECT_EQ(found.bottleneck, value.bottleneck);
    EXPECT_LE(value.memory, limit);
    EXPECT_EQ(found.bottleneck, brute_force(request).bottleneck);
    EXPECT_TRUE(found.optimal());
    EXPECT_EQ(owners(found, units).size(), units);
    for (const WorkerLoad& load : found.loads) EXPECT_LE(load.load(), found.bottleneck);
  }
  const bool in_order = request.allocation == Allocation::contiguous;
  if (min < 2 || (in_order && request.links.levels().size() > 1)) return;
  request.memory_limits.clear();  // a limit for each worker
  for (int w = 0; w < request.workers; ++w)
    request.memory_limits.push_back(random.number(0, 3) == 0 ? infinity : min + random.number(0, 9));
  const Partition found = partition(request);
  EXPECT_TRUE(by_definition(request, found.cuts, found.stage_workers).keeps_limits);
  EXPECT_EQ(found.bottleneck, brute_force(request).bottleneck);
  EXPECT_TRUE(found.optimal());
  request.memory_limits = {min - 1};
  EXPECT_THAT(message_of([&] { partition(request); }),
              EndsWith(" " + std::to_string(static_cast<long>(min))));
}

TEST(Partition, ContiguousIsOptimal) {
  RandomRequests random;
  for (int i = 0; i < 400; ++i) expect_optimal(random.next(9, 5), random);
}

TEST(Partition, PlacedIsOptimal) {
  RandomRequests random;
  for (int i = 0; i < 400; ++i) {
    const PartitionRequest request = random.next(10, 4);
    std::vector<int> workers;
    const int stages = random.number(1, static_cast<int>(request.units.size()));
    for (int s = 0; s < stages; ++s) workers.push_back(random.number(0, request.workers - 1));
    expect_optimal(placed(request, workers), random);
  }
}

TEST(Partition, OverLinksOfSeveralLevelsItIsOptimal) {
  RandomRequests random;
  for (int i = 0; i < 200; ++i) {
    const Links links = random.levels();
    const auto over = [&](PartitionRequest request) {
      request.links = links;
      return request;
    };
    expect_optimal(over(random.next(9, 5)), random);
    expect_optimal(over(general(random.next(6, 4))), random);
    PartitionRequest request = over(random.next(8, 4));
    std::vector<int> workers;
    const int stages = random.number(1, static_cast<int>(request.units.size()));
    for (int s = 0; s < stages; ++s) workers.push_back(random.number(0, request.workers - 1));
    expect_optimal(placed(request, workers), random);
  }
  // A worker may be left out there, and which one decides the links.
  PartitionRequest mixed = random.mixed(random.next(5, 3));
  mixed.workers = 3;
  mixed.kinds = {0, 1, 0};
  mixed.links = random.levels();
  expect_refused(mixed, "links of several levels");
}

TEST(Partition, LayoutsAreOptimal) {
  RandomRequests random;
  for (const Layout layout : {Layout::loop, Layout::v}) {
    for (const auto& [workers, chunks] : {std::pair{2, 2}, {3, 2}, {2, 3}, {2, 4}}) {
      for (int i = 0; i < 20; ++i) {
        PartitionRequest request = random.next(10, 1);
        while (static_cast<int>(request.units.size()) < workers * chunks) request = random.next(11, 1);
        request.workers = workers;
        expect_optimal(placed(request, layout_workers(layout, workers, chunks)), random);
      }
    }
  }
}

TEST(Partition, GeneralIsOptimal) {
  RandomRequests random;
  for (int i = 0; i < 200; ++i) {
    PartitionRequest request = general(random.next(7, 3));
    if (random.number(0, 2) == 0) request.max_stages = random.number(1, 5);
    if (random.number(0, 2) == 0) request.links = {};
    expect_optimal(request, random);
  }
}

TEST(Partition, OnWorkersOfSeveralKindsItIsOptimal) {
  RandomRequests random;
  for (int i = 0; i < 300; ++i) {
    expect_optimal(random.mixed(random.next(8, 4)), random);
    PartitionRequest request = general(random.mixed(random.next(6, 3)));
    if (random.number(0, 2) == 0) request.max_stages = random.number(1, 5);
    if (random.number(0, 1) == 0) request.links = {};
    expect_optimal(request, random);
    request = random.mixed(random.next(9, 4));
    std::vector<int> workers;
    const int stages = random.number(1, static_cast<int>(request.units.size()));
    for (int s = 0; s < stages; ++s) workers.push_back(random.number(0, request.workers - 1));
    expect_optimal(placed(request, workers), random);
  }
}

TEST(Partition, WithSharedWeightsItIsOptimal) {
  RandomRequests random;
  for (int i = 0; i < 200; ++i) {
    expect_optimal(random.sharing(random.next(9, 5)), random);
    expect_optimal(general(random.sharing(random.next(7, 3))), random);
    expect_optimal(random.sharing(random.mixed(random.next(8, 4))), random);
    const PartitionRequest request = random.sharing(random.next(9, 4));
    std::vector<int> workers;
    const int stages = random.number(1, static_cast<int>(request.units.size()));
    for (int s = 0; s < stages; ++s) workers.push_back(random.number(0, request.workers - 1));
    expect_optimal(placed(request, workers), random);
  }
}

}  // namespace
}  // namespace starpipe::plan
