// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the cells of SVG images are painted: the shade shows the pass, the hue the micro-batch.

#include <cstddef>
#include <string>

#include "starpipe/plan/schedule/job.hpp"

namespace starpipe::plan::detail {

enum class Look : std::size_t { light, dark, outlined };
constexpr std::size_t looks = 3;

Look look_of(Pass pass);

/// The SVG attributes of cells of one look and hue, an index of `palette`. `hatched`: cells that would be
/// outlined are hatched by the pattern w<hue> instead, since they are too narrow for an outline.
std::string paint(Look look, std::size_t hue, bool hatched);

/// The colour of labels on such cells.
const char* text_fill(Look look, std::size_t hue);

}  // namespace starpipe::plan::detail
