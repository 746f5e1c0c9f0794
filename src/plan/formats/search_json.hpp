// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/search/search.hpp"

namespace starpipe::plan {

/// What a search adds to the JSON of its schedule: "lower_bound", and in "search" the layout, the number of
/// chunks, the options and the peak memory. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json search_json(const SearchResult& result, const SearchOptions& options);

}  // namespace starpipe::plan
