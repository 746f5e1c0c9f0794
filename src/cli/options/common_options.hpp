// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/numbers.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// A file that an option names for output; nothing when the option is not given.
struct OutputFile {
  std::string_view option;
  std::optional<std::filesystem::path> file;
  /// What the name may end in, in lower case; empty when the suffix has been checked.
  std::string_view suffix = {};
};

/// Throws InputError when the suffix of a file is not the one expected, or when an output is also one of
/// `inputs` or another output. Empty inputs are skipped. Does not look whether files can be written.
void check_outputs(std::span<const OutputFile> outputs, std::span<const std::filesystem::path> inputs);

/// The files that a run with this configuration reads.
std::vector<std::filesystem::path> inputs_of(const runtime::Config& config);

/// Throws InputError for a plug-in that adds no schedule, only layers or networks. `schedules`: its
/// schedules.
void require_schedules(const std::string& file, const std::vector<std::string>& schedules);

/// Adds --plugin, which may be repeated, and returns it.
CLI::Option* add_plugin_option(CLI::App& command, std::vector<std::string>& files);
/// For commands that use all schedules: adds those of the plug-ins to the registry. Throws InputError naming
/// a file that is not a plug-in, or adds no schedule.
void load_plugins(const std::vector<std::string>& files);

/// Adds --workers and --microbatches, both required and limited to the given numbers.
void add_size_options(CLI::App& command, int& workers, int workers_limit, int& microbatches,
                      int microbatches_limit);

// Checks of values on the command line, for CLI::Option::transform. Numbers are decimal, as in
// configurations: CLI11 by itself reads 0x10 as 16 and 010 as 8.

/// A whole number in [least, most].
CLI::Validator whole_number(std::uint64_t min, std::uint64_t max);
/// A finite number in the interval.
CLI::Validator decimal_number(const Interval& interval);
/// A number of bytes of at least `min`, with a unit (16MiB) or without.
CLI::Validator byte_count(std::uint64_t min = 0);

/// Throws InputError unless an option has one of `values` for all workers, or one for each.
void require_one_or_each(std::string_view option, std::size_t values, int workers);

/// Makes every option and argument of `app` and of its subcommands refuse an empty value.
void refuse_empty_values(CLI::App& app);

}  // namespace starpipe::cli
