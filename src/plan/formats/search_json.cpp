// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/search_json.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

namespace starpipe::plan {

nlohmann::ordered_json search_json(const SearchResult& result, const SearchOptions& options) {
  nlohmann::ordered_json search = {{"layout", to_string(result.layout)},
                                   {"chunks", result.chunks},
                                   {"seed", options.seed},
                                   {"budget", options.budget},
                                   {"complete", result.complete},
                                   {"peak_memory", result.peak_memory}};
  const std::vector<double>& limits = result.memory_limits;
  if (std::ranges::any_of(limits, [](double limit) { return std::isfinite(limit); }))
    search["memory_limit"] =
        limits.size() == 1 ? nlohmann::ordered_json(limits.front()) : nlohmann::ordered_json(limits);
  return {{"lower_bound", result.lower_bound}, {"search", search}};
}

}  // namespace starpipe::plan
