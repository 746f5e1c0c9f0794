// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace starpipe::plan::detail {

/// What a JSON text must keep to beside the grammar. nlohmann's parser checks neither, and its callback,
/// which could, takes time in proportion to the square of an array's length.
struct JsonRules {
  bool different_keys = false;          ///< no object has a key twice; the parser would keep the last value
  std::optional<int> most_levels = {};  ///< of nesting: values are written and copied by recursion
};

/// Throws InputError, beginning with `source_name`, when the text breaks a rule. Says nothing of text that is
/// no JSON, from where its grammar ends. O(length), without building values.
void require_structure(std::string_view text, const std::string& source_name, const JsonRules& rules);

}  // namespace starpipe::plan::detail
