// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text and numbers in SVG images.

#include <string>
#include <string_view>

namespace starpipe::plan::detail {

/// The text with XML markup escaped. Bytes that are not UTF-8, and control characters, become question marks.
std::string escape(std::string_view text);
/// A number of pixels, with at most two decimals.
std::string px(double value);
/// Width in pixels of `text` in a common sans serif of `size` pixels, rather too wide than too narrow.
double text_width(std::string_view text, double size);

}  // namespace starpipe::plan::detail
