// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_text.hpp"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace starpipe::plan::detail {

std::string escape(std::string_view text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80 ? 1 : byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 0;
    bool valid = length != 0 && byte < 0xf5 && i + length <= text.size();
    for (std::size_t k = 1; valid && k < length; ++k) {
      valid = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    }
    // Overlong forms, surrogates, beyond Unicode, and U+FFFE, U+FFFF.
    if (valid && length >= 3) {
      const auto second = static_cast<unsigned char>(text[i + 1]);
      const bool last_two = byte == 0xef && second == 0xbf && static_cast<unsigned char>(text[i + 2]) >= 0xbe;
      valid = !(byte == 0xe0 && second < 0xa0) && !(byte == 0xed && second >= 0xa0) &&
              !(byte == 0xf0 && second < 0x90) && !(byte == 0xf4 && second >= 0x90) && !last_two;
    }
    if (!valid || (byte < 0x20 && byte != '\t') || byte == 0x7f) {
      safe += '?';
      ++i;
      continue;
    }
    switch (text[i]) {
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
        safe.append(text.substr(i, length));
    }
    i += length;
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

}  // namespace starpipe::plan::detail
