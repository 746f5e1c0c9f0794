// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text and numbers in SVG images.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

constexpr const char* ink = "#1f2328";
constexpr const char* faint_ink = "#59636e";

/// Returns `one_line` of the text with XML markup escaped.
std::string escape(std::string_view text);
/// Returns a number of pixels, with at most two decimals.
std::string px(double value);
/// Width in pixels of `text` in a common sans serif of `size` pixels, rather too wide than too narrow.
double text_width(std::string_view text, double size);

/// Appends a text of `size` pixels at x on the base line y. `extra`: more SVG attributes, after a blank.
void put_text(double x, double y, double size, const char* fill, std::string_view text, std::string& svg,
              const char* extra = "");

// The colours of micro-batches in drawings.

/// Two shades of one hue, light for F and dark for B and BW: as SVG colours, and as codes of a terminal's 256
/// colours.
struct Hue {
  const char* light;
  const char* dark;
  int light_code;
  int dark_code;
};

// Neighbours in the cycle differ in more than red against green, so that colour-blind readers can tell
// micro-batches apart. Dark shades suit white text, light ones black text (contrast above 4.5).
inline constexpr std::array<Hue, 8> palette = {{{"#a9d0f2", "#1c5d9c", 153, 25},
                                                {"#fbd19b", "#a85200", 222, 130},
                                                {"#a3dfc8", "#0b6e53", 151, 23},
                                                {"#e6c0e4", "#86358a", 182, 90},
                                                {"#f0e48f", "#766500", 229, 58},
                                                {"#f8bcb3", "#a82a22", 217, 124},
                                                {"#a5e2ea", "#0c6879", 159, 30},
                                                {"#d3d7dc", "#4a535e", 252, 240}}};

/// Index in `palette` of the hue of a micro-batch. The palette repeats.
constexpr std::size_t hue_of(int microbatch) { return index(microbatch) % palette.size(); }

/// Returns the distance of the ticks of an axis: the smallest 1, 2 or 5 times a power of ten that is at least
/// `min`, which must be positive.
double tick_step(double min);

}  // namespace starpipe::plan
