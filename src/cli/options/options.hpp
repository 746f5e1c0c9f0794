// SPDX-License-Identifier: Apache-2.0
// Options of the command line that subcommands share.
#pragma once

#include <array>
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
#include <nlohmann/json.hpp>

#include "plan/formats/results.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// Adds an option or an argument with a value. `name`: its names and the name of its value, as the help shows
/// them: "-o,--output FILE.json". `check`: reads a value, or refuses it. An option with several values may be
/// repeated, and takes one word each time: one value, or a list with commas if the name of its value has a
/// comma.
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
  std::vector<std::string_view> suffixes = {};  ///< that it may have, in lower case; empty: checked elsewhere
};

/// Files that a command writes besides the text that it prints, each with an option of its own.
class OutputFiles {
 public:
  OutputFiles(std::vector<OutputFile> files = {}) : files_(std::move(files)) {}

  /// Adds an option. `name`: as for `add_option`; its value is "FILE" with the suffix, or two such words with
  /// a bar between them. Messages use the first of its names.
  CLI::Option* add(CLI::App& command, std::string_view name, const std::string& help);
  /// Throws InputError if a file has another suffix than expected, if it is also one of `inputs` or another
  /// output, or if it is a page and this program has none. Skips empty inputs. Does not check that files can
  /// be written.
  void check(std::span<const std::filesystem::path> inputs) const;
  /// Throws InputError if a file cannot be written.
  void require_writable() const;
  [[nodiscard]] const std::vector<OutputFile>& files() const { return files_; }
  /// Returns the file of an option; nullopt if the option is not given.
  [[nodiscard]] const std::optional<std::filesystem::path>& file(std::string_view option) const;
  [[nodiscard]] bool has(std::string_view option) const { return file(option).has_value(); }
  /// Writes what `text` returns, if the option is given.
  void write(std::string_view option, const std::function<std::string()>& text) const;

 private:
  std::vector<OutputFile> files_;
};

/// Returns the files that a run with this configuration reads.
std::vector<std::filesystem::path> inputs_of(const runtime::Config& config);

/// Throws InputError for a plug-in without `schedules`: it adds only layers or networks.
void require_schedules(const std::string& file, const std::vector<std::string>& schedules);

/// Allows an option several times, with one value each time. Returns the option.
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

/// Accepts a whole number in [min, max].
CLI::Validator whole_number(std::uint64_t min, std::uint64_t max);
/// Accepts a finite number in the interval.
CLI::Validator decimal_number(const Interval& interval);
/// Accepts a number of bytes of at least `min`, with a unit (16MiB) or without.
CLI::Validator byte_count(std::uint64_t min = 0);

/// Accepts these words only.
inline CLI::Validator one_of(std::span<const std::string_view> words) {
  return CLI::IsMember(std::vector<std::string>(words.begin(), words.end()));
}

/// Throws InputError unless an option has one value for all workers, or one for each. `values`: their number.
void require_one_or_each(std::string_view option, std::size_t values, int workers);

/// Makes every option and argument of `app` and of its subcommands refuse an empty value.
void refuse_empty_values(CLI::App& app);

/// A configuration file and its changes on the command line: CONFIG.yaml, --set, and where it is added
/// --plugin.
class ConfigOptions {
 public:
  /// Returns the option of the file, so that other options can depend on it.
  CLI::Option* add_to(CLI::App& command, bool required = true);
  /// Adds --plugin, for commands that make the configured schedule. Call it after `add_to`.
  void add_plugin_to(CLI::App& command);
  /// Returns the configuration with its changes. `schedules`: schedules that run instead of the configured
  /// schedule. Throws InputError as `load_config` does, and for a plug-in of --plugin that has none of the
  /// schedules that run. STARPU_SCHED has precedence over the policy of the file, as StarPU's users expect.
  /// Throws InputError if it contradicts the command line (--set).
  [[nodiscard]] runtime::Config load(const std::vector<std::string>& schedules = {}) const;
  /// Sets a key as `--set KEY=VALUE` does, for the option `option`. Throws InputError if --set gives the key,
  /// too.
  void set(const std::string& key, const std::string& value, std::string_view option);
  /// True if --set gives this key.
  [[nodiscard]] bool overrides(const std::string& key) const;
  /// Throws InputError if --set gives one of the keys or sections in `unused`, which have no effect in the
  /// command, or a key of such a section, unless it is one of `used`.
  void refuse_overrides(std::string_view command, std::span<const std::string_view> unused,
                        std::span<const std::string_view> used = {}) const;

 private:
  void check_policy(const runtime::Config& config) const;

  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<std::string> plugins_;
};

/// Throws InputError for a `runtime.policy`, which `compare` does not run: it has --policies.
void refuse_policy_in_compare(const runtime::Config& config);

/// Adds an option of a schedule, given as NAME=VALUE. Returns why it cannot; "" if it can.
std::string read_schedule_option(const std::string& word, plan::ScheduleOptions& options);

/// Adds --option NAME=VALUE, which may be repeated, for the options of a schedule.
void add_schedule_option(CLI::App& command, plan::ScheduleOptions& options,
                         const std::string& help =
                             "Option of the schedule, as `schedule list --long` shows them; may be repeated");

/// The values of --home: homes, or the name of a way to choose them.
struct HomeOptions {
  std::vector<plan::Home> homes;
  std::string way = {};

  [[nodiscard]] bool may_recompute() const {
    return !way.empty() || std::ranges::find(homes, plan::Home::none) != homes.end();
  }
};

/// Adds --memory-limit and --home.
void add_memory_options(CLI::App& command, std::vector<int>& memory_limits, HomeOptions& homes);

/// Options that cut the stages of a schedule into shards: --tensor and --tensor-workers.
class TensorOptions {
 public:
  void add_to(CLI::App& command);
  /// Replaces a schedule of stages and their costs by the schedule and the costs of shards. Throws InputError
  /// as plan::tensor_fold does.
  void apply(plan::Schedule& schedule, plan::Costs& costs) const;
  [[nodiscard]] int shards() const { return shards_; }
  /// Returns the number of stages that `whole` stages have after they are cut into shards.
  [[nodiscard]] std::int64_t stages(std::int64_t whole) const {
    return shards_ > 1 ? whole * shards_ + 1 : whole;
  }

 private:
  int shards_ = 1;
  std::optional<int> workers_each_;
};

/// Adds a hidden option --tensor that is refused, for commands that know only chains. `reason`: why, and what
/// to do instead.
void refuse_tensor(CLI::App& command, const std::string& reason);

/// Costs of passes and transfers: --durations, --comm or --links; where they are added, also --overlap,
/// --copy, --bytes and --no-prefetch.
class CostOptions {
 public:
  /// `default_durations`, `default_comm`: the costs without --durations and --comm, for the help.
  void add_to(CLI::App& command, const std::string& default_durations, const std::string& default_comm = "0");
  /// Adds only --durations, for commands that know the links.
  void add_durations_to(CLI::App& command, const std::string& default_durations);
  void add_no_prefetch_to(CLI::App& command);
  /// Adds --overlap, for commands that know schedules with pairs.
  void add_overlap_to(CLI::App& command);
  /// Adds --copy, for commands with --home.
  void add_copy_to(CLI::App& command);
  /// Adds --bytes, for commands that do not know a model, and so not the bytes that its stages send.
  void add_bytes_to(CLI::App& command);
  /// Replaces the costs that the command line gives. `unit`, of all times of the costs, becomes "s" if they
  /// have units there, and empty if not. `device`: the kind of device, for a file with durations of several;
  /// empty if the caller knows none, and such a file is refused. Throws InputError naming the option or the
  /// file, also if only some times have a unit.
  void apply(plan::Costs& costs, std::string& unit, int stages, const std::string& device = {}) const;
  /// Divides durations and bytes of the command line, which are of whole micro-batches, among the slices of a
  /// schedule: durations as they were divided in `before`, the costs without the command line, else equally.
  void divide_among_slices(plan::Costs& costs, const plan::Costs& before,
                           const plan::Schedule& schedule) const;
  /// Prints a line on standard error if a run of the schedule `name` transfers data whose bytes --bytes does
  /// not give: these transfers have a latency only.
  void note_missing_bytes(const std::string& name, const plan::Timeline& timeline) const;
  /// Throws InputError if --overlap is given and the schedule has no pairs.
  void require_pairs(const plan::Schedule& schedule) const;
  /// Returns `others` and the files that --durations and --links name: what a command reads.
  [[nodiscard]] std::vector<std::filesystem::path> inputs(std::vector<std::filesystem::path> others) const;
  [[nodiscard]] std::vector<std::filesystem::path> inputs(const std::vector<std::string>& others) const {
    return inputs(std::vector<std::filesystem::path>(others.begin(), others.end()));
  }
  /// Returns the files that --durations and --links name; empty where they name none.
  [[nodiscard]] std::array<std::filesystem::path, 2> files() const;
  /// True if --durations was given.
  [[nodiscard]] bool gives_durations() const { return durations_.has_value(); }
  /// True if --links or --comm gives the times of transfers.
  [[nodiscard]] bool gives_links() const { return links_.has_value() || comm_.has_value(); }

 private:
  /// True if --durations has the times themselves and not the name of a file.
  [[nodiscard]] bool is_inline() const;
  void apply_comm(plan::Costs& costs, const std::string& unit, const std::string& former_unit) const;
  void apply_links(plan::Costs& costs, const std::string& unit) const;

  std::optional<std::string> durations_;
  std::optional<std::string> comm_;
  std::optional<std::string> links_;
  std::optional<std::string> overlap_;
  std::optional<std::string> copy_;
  std::optional<std::uint64_t> bytes_;
  bool needs_bytes_ = false;  ///< there is no model that gives the sizes of results
  bool no_prefetch_ = false;
};

/// Form and destination of a result: --format, --json, -o, --html, and where it is added --width.
class ResultOptions {
 public:
  void add_to(CLI::App& command);
  /// Adds --width, for commands whose text has a drawing.
  void add_width_to(CLI::App& command);
  /// Returns the other outputs, which the command adds and writes.
  OutputFiles& outputs() { return outputs_; }
  [[nodiscard]] const OutputFiles& outputs() const { return outputs_; }
  /// Checks all outputs of the command. `inputs`: the files that it reads. Call it before the work is done.
  /// Throws InputError as OutputFiles does, and also if the suffix of -o does not match the format, or the
  /// format has no --width.
  void check(std::span<const std::filesystem::path> inputs) const;
  /// True if the result is text for people.
  [[nodiscard]] bool is_text() const { return format() == "text"; }
  /// Writes the result to standard output or to the file of -o. `text` makes the text format. `more`: an
  /// object whose members are added to the JSON format, and shown on the page. A reordering is part of text
  /// and JSON; with the other formats, a line on standard error says so.
  void show(const plan::PredictedRun& run, const std::function<std::string()>& text,
            const nlohmann::ordered_json& more = nlohmann::ordered_json::object()) const;
  /// Returns drawing and table: as wide as --width, else as the terminal, in colour on a terminal; 200
  /// columns wide without colour in files and pipes.
  [[nodiscard]] std::string drawn(const plan::PredictedRun& run) const;

 private:
  [[nodiscard]] std::string format() const;

  std::optional<std::string> format_;
  bool json_ = false;
  std::optional<std::string> file_;
  OutputFiles outputs_;
  std::optional<int> width_;
};

}  // namespace starpipe::cli
