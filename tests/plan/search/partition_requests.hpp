// SPDX-License-Identifier: Apache-2.0
// Requests for partition tests, and refused ones.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/search/partition.hpp"
#include "starpipe/base/index.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

inline PartitionRequest chain(const std::vector<double>& times, int workers) {
  PartitionRequest request{.workers = workers};
  for (const double time : times) {
    request.units.push_back({.name = "l", .time = {.F = time / 4, .B = time / 4, .W = time / 2}});
  }
  return request;
}

inline PartitionRequest general(PartitionRequest request) {
  request.allocation = Allocation::general;
  return request;
}

inline PartitionRequest placed(PartitionRequest request, std::vector<int> stage_workers) {
  request.allocation = Allocation::placed;
  request.stage_workers = std::move(stage_workers);
  return request;
}

/// The worker of each unit.
inline std::vector<int> owners(const Partition& partition, std::size_t units) {
  std::vector<int> owner;
  std::size_t stage = 0;
  for (std::size_t l = 0; l < units; ++l) {
    if (stage < partition.cuts.size() && index(partition.cuts[stage]) == l) ++stage;
    owner.push_back(partition.stage_workers[stage]);
  }
  return owner;
}

class RandomRequests {
 public:
  int number(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  PartitionRequest next(int max_units, int max_workers) {
    PartitionRequest request{.workers = number(1, max_workers)};
    const int units = number(1, max_units);
    for (int l = 0; l < units; ++l) {
      const auto bytes = [&](int max) { return static_cast<std::uint64_t>(number(0, max)); };
      const std::uint64_t activation = bytes(8);
      request.units.push_back(
          {.name = "l",
           .time = {.F = number(0, 5) + 0.0, .B = number(0, 5) + 0.0, .W = number(0, 9) + 0.0},
           .sizes = {.activation = activation,
                     .gradient = number(0, 3) == 0 ? bytes(8) : activation,
                     .stash = bytes(9),
                     .weights = bytes(6)}});
    }
    const double alpha = number(0, 1) == 1 ? number(0, 4) : 0;
    const double beta = number(0, 1) == 1 ? number(0, 2) / 2.0 : 0;
    request.links = Link{.alpha = alpha, .beta = beta};
    request.optimizer_states = number(0, 2);
    request.stashes = {1};
    while (number(0, 2) > 0) request.stashes.push_back(request.stashes.back() + number(0, 2));
    return request;
  }

  /// Pairs of workers, and perhaps groups of four.
  Links levels() {
    const auto link = [this] { return Link{.alpha = number(0, 3) + 0.0, .beta = number(0, 2) / 2.0}; };
    std::vector<LinkLevel> levels = {{.workers = 2, .link = link()}};
    if (number(0, 1) == 1) levels.push_back({.workers = 4, .link = link()});
    levels.push_back({.link = link()});
    return Links(levels);
  }

  /// Adds one or two sets of weights that some of the units share.
  PartitionRequest sharing(PartitionRequest request) {
    for (int k = number(1, 2); k > 0; --k) {
      SharedUnits& set = request.shared.emplace_back();
      const int units = static_cast<int>(request.units.size());
      for (int l = 0; l < units; ++l) {
        if (number(0, 2) == 0) set.units.push_back(l);
      }
      if (set.units.empty()) set.units = {units - 1};
      set.weights = static_cast<std::uint64_t>(number(0, 9));
      if (number(0, 1) == 1) set.master = 2 * set.weights;
    }
    return request;
  }

  /// A random request with workers of up to three kinds.
  PartitionRequest mixed(PartitionRequest request) {
    const int kinds = number(2, 3);
    for (int w = 0; w < request.workers; ++w) request.kinds.push_back(number(0, kinds - 1));
    for (UnitCosts& unit : request.units) {
      for (int kind = 1; kind < kinds; ++kind)
        unit.others.push_back({.F = number(0, 9) + 0.0, .B = number(0, 9) + 0.0, .W = number(0, 9) + 0.0});
    }
    return request;
  }

 private:
  std::mt19937 random_{20};
};

/// Expects that partition() throws InputError with `part` in its message.
inline void expect_refused(const PartitionRequest& request, const std::string& part) {
  expect_input_error([&] { partition(request); }, part);
}

}  // namespace starpipe::plan
