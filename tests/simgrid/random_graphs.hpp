// SPDX-License-Identifier: Apache-2.0
// What random_graphs_test and the program that it simulates agree on.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "runtime/simulation/cluster.hpp"

namespace starpipe::runtime::testing {

constexpr int small_cluster_gpus = 8;
constexpr std::uint64_t small_gpu_memory = std::uint64_t{8} << 20U;

/// One node of GPUs with little memory. Links are shared.
inline Cluster small_cluster(int ranks) {
  return {.gpus_per_node = small_cluster_gpus,
          .gpu_memory = small_gpu_memory,
          .host_link = {.alpha = 10e-6, .beta = 1 / 25e9},
          .gpus_per_host_link = 2,
          .links = plan::Links(
              {{.name = "switch",
                .workers = 4,
                .link = {.alpha = 8e-6, .beta = 1 / 25e9},
                .sharing = plan::Sharing::fair},
               {.name = "node", .link = {.alpha = 12e-6, .beta = 1 / 20e9}, .sharing = plan::Sharing::fair}}),
          .ranks_per_node = ranks};
}

/// Returns the last line that the program prints.
inline std::string last_line(std::uint64_t graphs, int wrong) {
  return fmt::format("{} graphs ended, {} of them wrong\n", graphs, wrong);
}

}  // namespace starpipe::runtime::testing
