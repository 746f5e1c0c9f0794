// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace starpipe::plan {

/// How a chain of W * C stages lies on W workers, C of them (its chunks) on each.
enum class Layout : std::uint8_t {
  loop,  ///< stage s on worker s mod W
  v,     ///< there and back: every second chunk runs from the last worker to the first
};

std::string_view to_string(Layout layout);
/// The inverse. Throws InputError for a word that is no layout.
Layout parse_layout(std::string_view word);
/// Worker of each of `workers` * `chunks` stages.
std::vector<int> layout_workers(Layout layout, int workers, int chunks);

}  // namespace starpipe::plan
