// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <CLI/CLI.hpp>

#include "base/interval.hpp"

namespace starpipe::cli {

// Checks of values on the command line, for CLI::Option::transform. Numbers are decimal, as in
// configurations: CLI11 by itself reads 0x10 as 16 and 010 as 8.

/// A whole number in [least, most].
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
/// A finite number in the interval.
CLI::Validator decimal_number(const Interval& interval);
/// A number of bytes of at least `least`, with a unit (16MiB) or without.
CLI::Validator byte_count(std::uint64_t least = 0);

/// Throws InputError unless an option has one of `values` for all workers, or one for each.
void require_one_or_each(std::string_view option, std::size_t values, int workers);

/// Makes every option and argument of `app` and of its subcommands refuse an empty value.
void refuse_empty_values(CLI::App& app);

}  // namespace starpipe::cli
