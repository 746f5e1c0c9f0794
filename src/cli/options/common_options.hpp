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

#include "starpipe/base/interval.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// A file that an option names for output.
struct OutputFile {
  std::string_view option;
  std::optional<std::filesystem::path> file;  ///< nullopt if the option is not given
  std::string_view suffix = {};  ///< of the name, in lower case; empty if the suffix has been checked
};

/// Throws InputError if a file has another suffix than expected, or if an output is also one of `inputs` or
/// another output. Skips empty inputs. Does not check that files can be written.
void check_outputs(std::span<const OutputFile> outputs, std::span<const std::filesystem::path> inputs);
/// As `check_outputs`. Also throws InputError if a file cannot be written.
void require_outputs(std::span<const OutputFile> outputs, std::span<const std::filesystem::path> inputs);

/// The files that a run with this configuration reads.
std::vector<std::filesystem::path> inputs_of(const runtime::Config& config);

/// Throws InputError for a plug-in without `schedules`: it adds only layers or networks.
void require_schedules(const std::string& file, const std::vector<std::string>& schedules);

/// Adds --plugin, which may be repeated, and returns it.
CLI::Option* add_plugin_option(CLI::App& command, std::vector<std::string>& files);
/// Adds the schedules of the plug-ins to the registry, for commands that use all schedules. Throws InputError
/// naming a file that is not a plug-in, or adds no schedule.
void load_plugins(const std::vector<std::string>& files);

/// Adds --workers and --microbatches, both required and limited to the given numbers.
void add_size_options(CLI::App& command, int& workers, int workers_limit, int& microbatches,
                      int microbatches_limit);

// Checks of values, for CLI::Option::transform. Numbers are decimal, as in configurations: CLI11 by itself
// reads 0x10 as 16 and 010 as 8.

/// A whole number in [least, most].
CLI::Validator whole_number(std::uint64_t min, std::uint64_t max);
/// A finite number in the interval.
CLI::Validator decimal_number(const Interval& interval);
/// A number of bytes of at least `min`, with a unit (16MiB) or without.
CLI::Validator byte_count(std::uint64_t min = 0);

/// Throws InputError unless an option has one value for all workers, or one for each. `values`: how many.
void require_one_or_each(std::string_view option, std::size_t values, int workers);

/// Makes every option and argument of `app` and of its subcommands refuse an empty value.
void refuse_empty_values(CLI::App& app);

}  // namespace starpipe::cli
