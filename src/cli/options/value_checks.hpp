// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

#include "starpipe/base/interval.hpp"

namespace starpipe::cli {

// Checks of values on the command line, for CLI::Option::transform. Numbers are decimal, as in
// configurations: CLI11 by itself reads 0x10 as 16 and 010 as 8.

/// A whole number in [least, most].
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
/// A finite number in the interval.
CLI::Validator decimal_number(const Interval& interval);
/// A number of bytes of at least `least`, with a unit (16MiB) or without.
CLI::Validator byte_count(std::uint64_t least = 0);

/// Makes every option and argument of `app` and of its subcommands refuse an empty value.
void refuse_empty_values(CLI::App& app);

}  // namespace starpipe::cli
