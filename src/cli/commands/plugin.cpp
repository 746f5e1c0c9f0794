// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/plugin.hpp"

#include "cli/commands/subcommand.hpp"
#include "cli/processes/processes.hpp"
#include "plan/registry/conformance.hpp"

namespace starpipe::cli {
namespace {

using nlohmann::ordered_json;
using plan::Finding;

struct PluginOptions {
  std::string file;
  int timeout = 60;  // seconds for each step
  bool json = false;
};

struct ScheduleResult {
  std::string schedule;
  std::string step;
  Finding finding;
};

// A plug-in may crash or never return: its code runs in other processes only.

/// Returns the names of the schedules in the plug-in.
std::vector<std::string> names_of(const std::string& file, std::chrono::seconds max) {
  const SubprocessResult loaded = run_in_subprocess(
      [&] {
        try {
          return ordered_json{{"names", plan::load_plugin(file)}}.dump();
        } catch (const InputError& error) {
          return ordered_json{{"refusal", error.what()}}.dump();
        }
      },
      max);
  if (!loaded.failure.empty()) {
    throw InputError(fmt::format("plug-in {}: loading it failed: {}", file, loaded.failure));
  }
  const ordered_json answer = ordered_json::parse(loaded.output);
  if (answer.contains("refusal")) throw InputError(answer.at("refusal").get<std::string>());
  std::vector<std::string> names = answer.at("names");
  require_schedules(file, names);
  return names;
}

Finding run_step(const std::string& file, const std::string& name, const plan::ConformanceStep& step,
                 std::chrono::seconds max) {
  const SubprocessResult run = run_in_subprocess(
      [&] {
        plan::load_plugin(file);
        const Finding finding = step.run(name);
        return ordered_json{{"outcome", finding.outcome}, {"message", finding.message}}.dump(
            -1, ' ', false, ordered_json::error_handler_t::replace);
      },
      max);
  if (!run.failure.empty()) return {Finding::Outcome::failed, run.failure};
  const ordered_json answer = ordered_json::parse(run.output);
  return {answer.at("outcome"), answer.at("message")};
}

std::string text_of(const std::string& file, const std::vector<ScheduleResult>& results) {
  std::string text = fmt::format("{}: built for starpipe {}\n", file, STARPIPE_INTERFACE_VERSION);
  // The first column is empty: steps are indented below their schedule.
  constexpr TableColumn left = {.align = Align::left};
  constexpr std::array columns = {left, left, TableColumn{.align = Align::left, .min_width = 6}, left};
  for (auto first = results.begin(); first != results.end();) {
    const auto next = std::find_if(first, results.end(), [&](const ScheduleResult& result) {
      return result.schedule != first->schedule;
    });
    std::vector<TableRow> rows;
    for (auto result = first; result != next; ++result) {
      rows.push_back(
          {"", result->step, std::string(plan::to_string(result->finding.outcome)), result->finding.message});
    }
    text += fmt::format("\n{}\n{}", first->schedule, table_text(rows, columns));
    first = next;
  }
  const auto failed = std::ranges::count(results, Finding::Outcome::failed,
                                         [](const ScheduleResult& result) { return result.finding.outcome; });
  return text + (failed == 0 ? "\nNothing failed.\n" : fmt::format("\n{} failed.\n", failed));
}

std::string json_of(const std::string& file, const std::vector<ScheduleResult>& results) {
  ordered_json steps = ordered_json::array();
  for (const auto& [schedule, step, finding] : results) {
    steps.push_back({{"schedule", schedule},
                     {"stage", step},
                     {"failed", finding.outcome == Finding::Outcome::failed},
                     {"applies", finding.outcome != Finding::Outcome::does_not_apply},
                     {"words", finding.message}});
  }
  return plan::json_text({{"plugin", file}, {"interface", STARPIPE_INTERFACE_VERSION}, {"stages", steps}});
}

int check(const PluginOptions& options) {
  const std::chrono::seconds max{options.timeout};
  std::vector<ScheduleResult> results;
  bool failed = false;
  for (const std::string& name : names_of(options.file, max)) {
    for (const plan::ConformanceStep& step : plan::conformance_steps()) {
      results.push_back({name, std::string(step.name), run_step(options.file, name, step, max)});
    }
    results.push_back(
        {name, "two ranks", train_on_two_ranks(std::filesystem::absolute(options.file), name, max)});
  }
  for (ScheduleResult& result : results) {
    failed = failed || result.finding.outcome == Finding::Outcome::failed;
    std::ranges::replace_if(
        result.finding.message, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  }
  print(options.json ? json_of(options.file, results) : text_of(options.file, results));
  return failed ? 1 : 0;
}

}  // namespace

void add_plugin(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("plugin", "Check schedules in a plug-in, a shared object of your own");
  command->require_subcommand(1);
  CLI::App* const checking = command->add_subcommand(
      "check", "Test every schedule of a plug-in, step by step up to training on two ranks");
  const auto options = std::make_shared<PluginOptions>();
  add_option(*checking, "file FILE", options->file, "Plug-in (shared object)")->required();
  add_option(*checking, "--timeout SECONDS", options->timeout,
             "Seconds that a step of the test may take (default 60)", whole_number(1, 86400));
  checking->add_flag("--json", options->json, "Print JSON");
  checking->footer(
      "Steps: chain, graph (several branches), split backward, memory limit, replicas, two ranks.\n"
      "Exit status: 0 nothing failed, 1 something failed, 2 the file cannot be loaded.");
  checking->callback([options, &action] { action = [options] { return check(*options); }; });
}

}  // namespace starpipe::cli
