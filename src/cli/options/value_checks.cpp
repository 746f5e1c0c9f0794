// SPDX-License-Identifier: Apache-2.0
#include "cli/options/value_checks.hpp"

#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "cli/input/yaml.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "base/number_input.hpp"

namespace starpipe::cli {
namespace {

/// "--help" shows it after the type's name.
std::string description(std::uint64_t least, std::uint64_t most) {
  return most >= std::numeric_limits<int>::max() ? "" : fmt::format("{} to {}", least, most);
}

}  // namespace

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return {[least, most](std::string& text) -> std::string {
            const bool negative = text.starts_with('-');
            std::errc error{};
            const auto value =
                parse_number<std::uint64_t>(std::string_view(text).substr(negative ? 1 : 0), error);
            if (!value) return fmt::format("expected a whole number, got '{}'", text);
            std::string problem = range_problem(text, least, most);
            if (problem.empty()) text = std::to_string(*value);
            return problem;
          },
          description(least, most)};
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

CLI::Validator byte_count(std::uint64_t least) {
  return {[least](std::string& text) -> std::string {
            const auto bytes = bytes_in(text);
            if (!bytes) return fmt::format("expected {}, got '{}'", bytes_words, text);
            if (*bytes < least) return fmt::format("must be at least {}, got {}", least, text);
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

}  // namespace starpipe::cli
