// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/base/interval.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// Adds an option or an argument with a value. `name`: its names and the name of its value, as the help shows
/// them: "-o,--output FILE.json". `check`: reads a value, or refuses it. Each occurrence of an option with
/// several values takes one word: values with commas if the name of the value has a comma, else one value.
template <class Value>
CLI::Option* add_option(CLI::App& command, const std::string& name, Value& value, const std::string& help,
                        const CLI::Validator& check = {}) {
  const auto blank = name.find(' ');
  const std::string type = name.substr(blank + 1);
  CLI::Option* const option = command.add_option(name.substr(0, blank), value, help);
  if (option->get_expected_max() > 1 && name.starts_with('-')) {
    option->allow_extra_args(false);
    if (type.find(',') != std::string::npos) option->delimiter(',');
  }
  return option->type_name(type)->transform(check);
}

/// A file that an option names for output.
struct OutputFile {
  std::string option;
  std::optional<std::filesystem::path> file;    ///< nullopt if the option is not given
  std::vector<std::string_view> suffixes = {};  ///< of its name, in lower case; empty: checked elsewhere
};

/// Files that a command writes besides the text that it prints, each with an option of its own.
class OutputFiles {
 public:
  OutputFiles(std::vector<OutputFile> files = {}) : files_(std::move(files)) {}

  /// Adds an option. `name`: as for `add_option`; its value is "FILE" with the suffix, or two such words with
  /// a bar. Messages have the first name.
  CLI::Option* add(CLI::App& command, std::string_view name, const std::string& help);
  /// Throws InputError if a file has another suffix than expected, if it is also one of `inputs` or another
  /// output, or if it is a page and this program has none. Skips empty inputs. Does not check that files can
  /// be written.
  void check(std::span<const std::filesystem::path> inputs) const;
  /// Throws InputError if a file cannot be written.
  void require_writable() const;
  [[nodiscard]] const std::vector<OutputFile>& files() const { return files_; }
  /// The file of an option; nullopt if the option is not given.
  [[nodiscard]] const std::optional<std::filesystem::path>& file(std::string_view option) const;
  [[nodiscard]] bool has(std::string_view option) const { return file(option).has_value(); }
  /// Writes what `text` returns, if the option is given.
  void write(std::string_view option, const std::function<std::string()>& text) const;

 private:
  std::vector<OutputFile> files_;
};

/// The files that a run with this configuration reads.
std::vector<std::filesystem::path> inputs_of(const runtime::Config& config);

/// Throws InputError for a plug-in without `schedules`: it adds only layers or networks.
void require_schedules(const std::string& file, const std::vector<std::string>& schedules);

/// Makes an option with a value, which may be given several times, look so in the help.
CLI::Option* repeated(CLI::Option* option);

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

/// One of these words.
inline CLI::Validator one_of(std::span<const std::string_view> words) {
  return CLI::IsMember(std::vector<std::string>(words.begin(), words.end()));
}

/// Throws InputError unless an option has one value for all workers, or one for each. `values`: how many.
void require_one_or_each(std::string_view option, std::size_t values, int workers);

/// Makes every option and argument of `app` and of its subcommands refuse an empty value.
void refuse_empty_values(CLI::App& app);

}  // namespace starpipe::cli
