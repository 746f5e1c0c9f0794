// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace starpipe {

/// A number of bytes for people: "512 B", "1.5 MiB".
std::string bytes_text(std::uint64_t bytes);

/// At most five significant digits and no exponent for everyday magnitudes: "33", "0.2727", "1204.5".
std::string number_text(double value);

}  // namespace starpipe
