// SPDX-License-Identifier: Apache-2.0
#include "cli/options/options.hpp"

#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "base/numbers.hpp"
#include "cli/input/input_files.hpp"
#include "cli/input/yaml.hpp"
#include "plan/drawing/page.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/lost_rank.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/safetensors.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {
namespace {

namespace fs = std::filesystem;

fs::path resolved(const fs::path& file) {
  std::error_code ignored;
  if (is_standard_output(file)) return "/dev/stdout";
  return fs::weakly_canonical(fs::absolute(target_of(file), ignored), ignored);
}

}  // namespace

CLI::Option* OutputFiles::add(CLI::App& command, std::string_view name, const std::string& help) {
  const auto blank = name.find(' ');
  const std::string_view names = name.substr(0, blank);
  OutputFile& output = files_.emplace_back(OutputFile{std::string(names.substr(0, names.find(','))), {}});
  const std::string_view type = name.substr(blank + 1);
  for (auto at = type.find('.'); at != std::string_view::npos; at = type.find('.', at + 1))
    output.suffixes.push_back(type.substr(at, type.find('|', at) - at));
  return command
      .add_option_function<std::string>(
          std::string(names),
          [this, at = files_.size() - 1](const std::string& file) { files_[at].file = file; }, help)
      ->type_name(std::string(type));
}

void OutputFiles::check(std::span<const fs::path> inputs) const {
  std::set<fs::path> seen;
  for (const fs::path& input : inputs) {
    if (!input.empty()) seen.insert(resolved(input));
  }
  for (const auto& [option, file, suffixes] : files_) {
    if (!file || file->empty()) continue;
    if (!suffixes.empty()) require_suffix(option, *file, suffixes);
    if (seen.insert(resolved(*file)).second) continue;
    throw InputError(fmt::format("{}: {} is also an input of the run or the file of another option", option,
                                 file->string()));
  }
  if (has("--html")) plan::require_page("--html");
}

void OutputFiles::require_writable() const {
  for (const OutputFile& output : files_) {
    if (output.file) starpipe::require_writable(output.option, *output.file);
  }
}

const std::optional<fs::path>& OutputFiles::file(std::string_view option) const {
  static const std::optional<fs::path> none;
  const auto found = std::ranges::find(files_, option, &OutputFile::option);
  return found == files_.end() ? none : found->file;
}

void OutputFiles::write(std::string_view option, const std::function<std::string()>& text) const {
  if (const auto& name = file(option)) write_file(option, *name, text());
}

std::vector<fs::path> inputs_of(const runtime::Config& config) {
  std::vector<fs::path> files = {config.source,
                                 config.data.path,
                                 config.data.validation,
                                 config.model.init.value_or(""),
                                 config.schedule.file.value_or(""),
                                 config.schedule.profile_file,
                                 config.runtime.links_file};
  if (config.runtime.emulate) files.emplace_back(config.runtime.emulate->links_file);
  if (config.model.init && model::is_safetensors_index(*config.model.init)) {
    try {
      for (const auto& [file, tensors] : model::read_safetensors_index(*config.model.init))
        files.push_back(file);
    } catch (const InputError&) {  // the run refuses an index that it cannot read
    }
  }
  files.insert(files.end(), config.schedule.plugins.begin(), config.schedule.plugins.end());
  return files;
}

void require_schedules(const std::string& file, const std::vector<std::string>& schedules) {
  if (schedules.empty()) throw InputError(fmt::format("plug-in {}: it adds no schedule", file));
}

CLI::Option* repeated(CLI::Option* option) {
  return option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* add_plugin_option(CLI::App& command, std::vector<std::string>& files) {
  return repeated(add_option(
      command, "--plugin FILE", files,
      "Plug-in (shared object) that adds schedules or networks; may be repeated. Where the command or the "
      "configuration names a schedule, each plug-in must have it or the configuration's network"));
}

void load_plugins(const std::vector<std::string>& files) {
  for (const std::string& file : files) require_schedules(file, plan::load_plugin(file));
}

void add_size_options(CLI::App& command, int& workers, int workers_limit, int& microbatches,
                      int microbatches_limit) {
  add_option(command, "--workers W", workers, "Number of workers", whole_number(1, index(workers_limit)))
      ->required();
  add_option(command, "--microbatches B", microbatches, "Number of micro-batches in a step",
             whole_number(1, index(microbatches_limit)))
      ->required();
}

CLI::Validator whole_number(std::uint64_t min, std::uint64_t max) {
  // "--help" shows the range after the type's name.
  const std::string range = max >= std::numeric_limits<int>::max() ? "" : fmt::format("{} to {}", min, max);
  return {[min, max](std::string& text) -> std::string {
            const bool negative = text.starts_with('-');
            std::errc error{};
            const auto value =
                parse_number<std::uint64_t>(std::string_view(text).substr(negative ? 1 : 0), error);
            if (!value) return fmt::format("expected a whole number, got '{}'", text);
            std::string problem = range_problem(text, min, max);
            if (problem.empty()) text = std::to_string(*value);
            return problem;
          },
          range};
}

CLI::Validator decimal_number(const Interval& interval) {
  return {[interval](std::string& text) -> std::string {
            std::errc error{};
            const auto value = parse_number<double>(text, error);
            if (!value) return fmt::format("expected a number, got '{}'", text);
            if (error == std::errc{} && interval.contains(*value)) return "";
            return fmt::format("must be {}, got {}", interval.text(), text);
          },
          ""};
}

CLI::Validator byte_count(std::uint64_t min) {
  return {[min](std::string& text) -> std::string {
            const auto bytes = bytes_in(text);
            if (!bytes) return fmt::format("expected {}, got '{}'", bytes_words, text);
            if (*bytes < min) return fmt::format("must be at least {}, got {}", min, text);
            text = std::to_string(*bytes);
            return "";
          },
          ""};
}

void require_one_or_each(std::string_view option, std::size_t values, int workers) {
  if (values < 2 || values == index(workers)) return;
  throw InputError(fmt::format("{}: {} values for {} workers; give one for all, or one for each", option,
                               values, workers));
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::string type = option->get_type_name();
    const bool is_file =
        type.find("FILE") != std::string::npos || type.ends_with(".yaml") || type.ends_with(".json");
    option->check(
        [is_file](const std::string& value) -> std::string {
          if (!value.empty()) return "";
          return is_file ? "the name of the file is empty" : "the value is empty";
        },
        "");
  }
  for (CLI::App* const subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    refuse_empty_values(*subcommand);
  }
}

namespace {

/// Each rank reads the inputs of a run. A pipe gives its content to one of them, and the others would wait.
void require_shared(const std::filesystem::path& file) {
  std::error_code error;
  const bool pipe = std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error) &&
                    !std::filesystem::is_directory(file, error);
  if (pipe && runtime::launcher_rank())
    throw InputError(
        fmt::format("{}: is not a file; under a launcher each rank reads it, and a pipe can be read once",
                    file.string()));
}

}  // namespace

CLI::Option* ConfigOptions::add_to(CLI::App& command, bool required) {
  CLI::Option* const config =
      add_option(command, "config CONFIG.yaml", file_, "Configuration file")->required(required);
  repeated(add_option(command, "--set KEY=VALUE", overrides_,
                      "Override a key of the configuration, such as training.steps=10; may be repeated, and "
                      "the last value of a key counts"))
      ->needs(config);
  command.set_version_flag(
      "--help-keys", [] { return runtime::describe_keys(runtime::config_keys()); },
      "Print the keys of a configuration, with their values and defaults, and exit");
  return config;
}

void ConfigOptions::add_plugin_to(CLI::App& command) {
  add_plugin_option(command, plugins_)->needs(command.get_option("config"));
}

runtime::Config ConfigOptions::load(const std::vector<std::string>& schedules) const {
  require_shared(file_);
  // First: the configuration may name a network of theirs.
  for (const std::string& file : plugins_) plan::load_plugin(file);
  runtime::Config config = load_config(file_, overrides_);
  check_policy(config);
  for (const std::filesystem::path& file : inputs_of(config)) require_shared(file);
  if (config.schedule.file) {
    plan::load_plugins_for(plugins_, {}, "--plugin, with schedule.file", config.model.kind);
    return config;
  }
  plan::load_plugins_for(plugins_, schedules.empty() ? std::vector{config.schedule.name} : schedules,
                         "--plugin", config.model.kind);
  std::vector<std::string>& plugins = config.schedule.plugins;
  plugins.insert(plugins.end(), plugins_.begin(), plugins_.end());
  return config;
}

void ConfigOptions::check_policy(const runtime::Config& config) const {
  const std::string policy = environment("STARPU_SCHED").value_or("");
  if (policy.empty() || policy == config.runtime.policy || !overrides("runtime.policy")) return;
  throw InputError(
      fmt::format("STARPU_SCHED: {} contradicts --set runtime.policy={}", policy, config.runtime.policy));
}

void ConfigOptions::set(const std::string& key, const std::string& value, std::string_view option) {
  if (overrides(key)) throw InputError(fmt::format("{}: --set gives {}, too", option, key));
  overrides_.push_back(fmt::format("{}={}", key, value));
}

bool ConfigOptions::overrides(const std::string& key) const {
  return overridden_keys(overrides_).contains(key);
}

void ConfigOptions::refuse_overrides(std::string_view command, std::span<const std::string_view> unused,
                                     std::span<const std::string_view> used) const {
  for (const std::string& key : overridden_keys(overrides_)) {
    if (std::ranges::find(used, key) != used.end()) continue;
    for (const std::string_view name : unused) {
      if (key == name || key.starts_with(fmt::format("{}.", name)))
        throw InputError(fmt::format("--set {}: does not apply to {}", key, command));
    }
  }
}

void refuse_policy_in_compare(const runtime::Config& config) {
  if (config.runtime.policy == runtime::RuntimeConfig().policy) return;
  throw InputError(fmt::format("runtime.policy: {}: compare runs the policies of --policies instead",
                               config.runtime.policy));
}

}  // namespace starpipe::cli
