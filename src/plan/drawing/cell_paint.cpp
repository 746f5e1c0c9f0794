// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/cell_paint.hpp"

#include <fmt/format.h>

#include "plan/drawing/palette.hpp"
#include "plan/drawing/svg_text.hpp"

namespace starpipe::plan::detail {

Look look_of(Pass pass) {
  switch (pass) {
    case Pass::F:
      return Look::light;
    case Pass::W:
      return Look::outlined;
    case Pass::B:
    case Pass::BW:
      break;
  }
  return Look::dark;
}

std::string paint(Look look, std::size_t hue, bool hatched) {
  switch (look) {
    case Look::light:
      return fmt::format("fill=\"{}\"", palette[hue].light);
    case Look::dark:
      return fmt::format("fill=\"{}\"", palette[hue].dark);
    case Look::outlined:
      break;
  }
  return hatched ? fmt::format("fill=\"url(#w{})\"", hue)
                 : fmt::format("fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.2\"", palette[hue].dark);
}

const char* text_fill(Look look, std::size_t hue) {
  return look == Look::dark ? "#ffffff" : look == Look::light ? ink : palette[hue].dark;
}

}  // namespace starpipe::plan::detail
