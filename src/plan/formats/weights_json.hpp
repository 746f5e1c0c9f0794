// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan::detail {

/// Adds to an object which weights stages share (`shared_weights`), which stages have none of their own
/// (`stages_without_weights`), and which add their inputs (`stages_that_add`). Adds nothing where each
/// stage has weights of its own alone, and one input or several side by side.
void add_weights(nlohmann::ordered_json& object, const Costs& costs, int stages);

/// Reads it. Throws InputError as JsonValue does.
void read_weights(const JsonValue& object, int stages, Costs& costs);

}  // namespace starpipe::plan::detail
