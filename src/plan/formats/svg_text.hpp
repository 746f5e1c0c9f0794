// SPDX-License-Identifier: Apache-2.0
// Text and numbers in SVG images.
#pragma once

#include <string>
#include <string_view>

namespace starpipe::plan::detail {

/// Text that is safe in XML whatever its bytes: markup escaped, what is no text replaced.
std::string escape(std::string_view text);
/// Pixels with as few digits as the eye needs.
std::string px(double value);
/// Width of `text` in a common sans serif, erring on the wide side.
double text_width(std::string_view text, double size);
/// A number of round steps that covers `range` with about `wanted` ticks.
double tick_step(double range, double wanted);

}  // namespace starpipe::plan::detail
