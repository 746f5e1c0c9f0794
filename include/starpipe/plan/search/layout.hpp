// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace starpipe::plan {

/// Placement of a chain of W * C stages on W workers. Each worker has C stages, its chunks.
enum class Layout : std::uint8_t {
  loop,  ///< stage s on worker s mod W
  v,     ///< every second chunk of W stages runs from the last worker to the first
};

/// The layouts' words, in the order of the enum.
inline constexpr std::array<std::string_view, 2> layout_words = {"loop", "v"};
std::string_view to_string(Layout layout);
/// The inverse of `to_string`. Throws InputError for an unknown word.
Layout parse_layout(std::string_view word);
/// The worker of each of the `workers` * `chunks` stages.
std::vector<int> layout_workers(Layout layout, int workers, int chunks);

}  // namespace starpipe::plan
