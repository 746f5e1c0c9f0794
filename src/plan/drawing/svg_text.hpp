// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text and numbers in SVG images.

#include <string>
#include <string_view>

namespace starpipe::plan::detail {

constexpr const char* ink = "#1f2328";
constexpr const char* faint_ink = "#59636e";

/// The text with XML markup escaped. Bytes that are not UTF-8, and control characters, become question marks.
std::string escape(std::string_view text);
/// A number of pixels, with at most two decimals.
std::string px(double value);
/// Width in pixels of `text` in a common sans serif of `size` pixels, rather too wide than too narrow.
double text_width(std::string_view text, double size);

/// Appends a text of `size` pixels at x on the base line y. `extra`: more SVG attributes, after a blank.
void put_text(double x, double y, double size, const char* fill, std::string_view text, std::string& svg,
              const char* extra = "");

}  // namespace starpipe::plan::detail
