// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/rank_table.hpp"

#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/table.hpp"

namespace starpipe::runtime {

std::string rank_table(std::span<const RankLocation> ranks) {
  constexpr std::array columns = {TableColumn{Align::right}, TableColumn{Align::left},
                                  TableColumn{Align::left},  TableColumn{Align::right},
                                  TableColumn{Align::left},  TableColumn{Align::left},
                                  TableColumn{Align::left}};
  std::vector<TableRow> rows = {{"rank", "machine", "PUs", "cores", "bound by", "workers", "MPI's thread"}};
  for (const RankLocation& rank : ranks) {
    const std::string_view bound = rank.bound ? "each bound to a core" : "not bound to cores";
    rows.push_back({std::to_string(rows.size() - 1), rank.machine, rank.binding, std::to_string(rank.cores),
                    rank.bound_by.empty() ? "nobody" : rank.bound_by,
                    fmt::format("{}, {}", rank.workers, bound), rank.mpi_thread});
  }
  return table_text(rows, columns);
}

nlohmann::ordered_json ranks_json(std::span<const RankLocation> ranks) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const auto& [machine, binding, bound_by, cores, workers, bound, mpi_thread, logical, devices] :
       ranks) {
    all.push_back({{"machine", machine},
                   {"binding", binding},
                   {"bound_by", bound_by},
                   {"cores", cores},
                   {"workers", workers},
                   {"workers_bound", bound},
                   {"mpi_thread", mpi_thread},
                   {"logical_workers", logical},
                   {"devices", devices}});
  }
  return all;
}

}  // namespace starpipe::runtime
