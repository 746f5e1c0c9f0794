// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_text.hpp"

#include <cmath>

#include <fmt/format.h>

#include "base/messages.hpp"

namespace starpipe::plan {

std::string escape(std::string_view text) {
  std::string safe;
  for (const char c : one_line(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double text_width(std::string_view text, double size) {
  double em = 0;
  for (const char c : text) em += c == 'W' ? 0.99 : c == ' ' || c == '.' ? 0.33 : c <= '9' ? 0.64 : 0.69;
  return em * size;
}

void put_text(double x, double y, double size, const char* fill, std::string_view text, std::string& svg,
              const char* extra) {
  fmt::format_to(std::back_inserter(svg),
                 "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\"{}>{}</text>\n", px(x), px(y), px(size),
                 fill, extra, escape(text));
}

double tick_step(double min) {
  const double power = std::pow(10, std::floor(std::log10(min)));
  for (const double factor : std::array{1.0, 2.0, 5.0}) {
    if (factor * power >= min) return factor * power;
  }
  return 10 * power;
}

}  // namespace starpipe::plan
