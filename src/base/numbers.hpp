// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace starpipe {

/// A number of bytes for people: "512 B", "1.5 MiB".
std::string bytes_text(std::uint64_t bytes);

/// At most five significant digits and no exponent for everyday magnitudes: "33", "0.2727", "1204.5".
std::string number_text(double value);

/// A share for people: 0.273 is "27.3 %".
std::string percent_text(double fraction);

/// A relative difference for people: 0.05 is "+5.0 %".
std::string difference_text(double fraction);

/// A loss: four decimals for everyday magnitudes, five significant digits with an exponent for others:
/// "2.3026", "1.0000e+34".
std::string loss_text(double value);

/// A number of things: "1 rank", "2 ranks". `noun`: of one thing; its plural ends in s.
std::string counted_text(std::int64_t count, std::string_view noun);

}  // namespace starpipe
