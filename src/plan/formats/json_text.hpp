// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace starpipe::plan {

/// Any JSON value as text that people can read too. A value that fits in 100 columns stays on one line: so
/// each op of a schedule is one line. A longer array of numbers or words fills lines. Ends in a newline.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace starpipe::plan
