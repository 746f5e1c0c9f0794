// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/search.hpp"

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "cli/commands/subcommand.hpp"
#include "cli/input/yaml.hpp"
#include "plan/formats/results.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::cli {
namespace {

struct SearchCommand {
  std::vector<std::string> plugins;
  plan::SearchRequest request;
  plan::SearchOptions search;
  std::string layout = "any";
  std::vector<std::string> memory_limits;
  std::vector<std::uint64_t> stash;
  CostOptions costs;
  ResultOptions result;
  bool quiet = false;
};

std::string blank_and(const std::string& unit) { return unit.empty() ? "" : " " + unit; }

std::string progress_text(const plan::SearchProgress& progress, const std::string& unit) {
  const plan::ShownUnit shown(unit, progress.makespan);
  const double above = progress.lower_bound > 0 ? 100 * (progress.makespan / progress.lower_bound - 1) : 0;
  return fmt::format(
      "search: {:.1f} s, {:3.0f} % done, makespan {:.6g}{}, lower bound {:.6g}{} ({:.2f} % above it)",
      progress.seconds, 100 * progress.done, progress.makespan * shown.factor(), blank_and(shown.name()),
      progress.lower_bound * shown.factor(), blank_and(shown.name()), above);
}

plan::SearchResult search_with_progress(const plan::SearchRequest& request, plan::SearchOptions options,
                                        const std::string& unit) {
  const ProgressLine line;
  const auto start = std::chrono::steady_clock::now();
  if (line.on_terminal()) {
    options.progress = [&](const plan::SearchProgress& progress) {
      line.show(progress_text(progress, unit));
    };
  }
  plan::SearchResult result = plan::search(request, options);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  line.keep(progress_text({.seconds = taken.count(),
                           .done = 1,
                           .makespan = result.timeline.makespan,
                           .lower_bound = result.lower_bound},
                          unit) +
            (result.complete ? "" : "; ended by its budget, another run may differ"));
  return result;
}

/// Returns a memory limit: a number of stashes, or with --stash a size such as 12GiB, in bytes.
double read_limit(const SearchCommand& options, const std::string& text) {
  if (!options.stash.empty()) {
    const std::uint64_t bytes = bytes_in(text).value_or(0);
    if (bytes > 0) return static_cast<double>(bytes);
    throw InputError(fmt::format("--memory-limit {}: expected {}", text, bytes_words));
  }
  std::string number = text;
  if (const std::string problem = decimal_number(positive)(number); !problem.empty()) {
    throw InputError(fmt::format("--memory-limit {}: {} (bytes need --stash)", text, problem));
  }
  std::errc error{};
  return parse_number<double>(number, error).value_or(0);
}

/// Sets `unit` as CostOptions::apply does.
plan::SearchRequest read_request(const SearchCommand& options, std::string& unit) {
  plan::SearchRequest request = options.request;
  const int stages = request.workers * request.chunks.value_or(1);
  plan::require_few_jobs("--microbatches", stages, std::int64_t{request.microbatches} * request.slices,
                         plan::size_limits::search_pairs);
  if (options.layout != "any" && request.chunks == 1) {
    throw InputError("--layout: applies to --chunks of 2 or more");
  }
  if (std::ranges::find(request.homes, plan::Home::worker) == request.homes.end())
    throw InputError("--homes must include worker");
  if (options.layout != "any") request.layout = plan::parse_layout(options.layout);
  options.costs.apply(request.costs, unit, stages);
  require_one_or_each("--memory-limit", options.memory_limits.size(), request.workers);
  if (!options.memory_limits.empty()) {
    request.memory_limits.clear();
    for (const std::string& text : options.memory_limits)
      request.memory_limits.push_back(read_limit(options, text));
  }
  if (options.stash.empty()) return request;
  if (std::ranges::count(options.stash, 0) == std::ssize(options.stash)) {
    throw InputError("--stash: some stage must have a size greater than 0");
  }
  if (options.stash.size() != 1 && options.stash.size() != index(stages)) {
    throw InputError(fmt::format("--stash: {} sizes for {} {}; give one for all, or one for each",
                                 options.stash.size(), stages,
                                 request.chunks ? "stages" : "shares of the model, one for each worker"));
  }
  request.stash.assign(options.stash.begin(), options.stash.end());
  const plan::StageSizes sent = request.costs.sizes.front();  // of --bytes
  request.costs.sizes.assign(options.stash.size(), sent);
  for (std::size_t s = 0; s < options.stash.size(); ++s) request.costs.sizes[s].stash = options.stash[s];
  return request;
}

/// Returns the line below the drawing.
std::string result_line(const plan::SearchResult& result, const std::string& unit, bool in_bytes) {
  const double makespan = result.timeline.makespan;
  const double above = result.lower_bound > 0 ? 100 * (makespan / result.lower_bound - 1) : 0;
  const plan::ShownUnit shown(unit, makespan);
  const double max = result.peak_memory.empty() ? 0 : std::ranges::max(result.peak_memory);
  const std::string peak =
      in_bytes ? fmt::format("; stashes of up to {} on a worker", bytes_text(static_cast<std::uint64_t>(max)))
               : "";
  return fmt::format(
      "\nlayout {}, {} per worker{}; no schedule ends before {:.6g}{}: this one is {:.2f} % above\n",
      plan::to_string(result.layout), counted_text(result.chunks, "chunk"), peak,
      result.lower_bound * shown.factor(), blank_and(shown.name()), above);
}

/// One line for each schedule of a plug-in that the search could not start from.
void warn_of_unused(const std::vector<std::string>& plugins, const plan::SearchResult& result) {
  for (const std::string& file : plugins) {
    for (const std::string& name : plan::load_plugin(file)) {
      const auto found = std::ranges::find(result.unused, name, &plan::UnusedStart::schedule);
      if (found == result.unused.end()) continue;
      print_message("starpipe: " +
                    one_line(fmt::format("--plugin {}: the search did not start from schedule '{}': {}", file,
                                         name, found->reason)) +
                    "\n");
    }
  }
}

int search(const SearchCommand& options) {
  options.result.check(options.costs.inputs(options.plugins));
  load_plugins(options.plugins);  // their schedules are among those that the search starts from
  std::string unit;
  const plan::SearchRequest request = read_request(options, unit);
  const plan::SearchResult result = options.quiet ? plan::search(request, options.search)
                                                  : search_with_progress(request, options.search, unit);
  warn_of_unused(options.plugins, result);
  const plan::PredictedRun run{result.schedule, result.costs, result.timeline, unit};
  options.result.show(
      run, [&] { return options.result.drawn(run) + result_line(result, unit, !options.stash.empty()); },
      plan::search_json(result, options.search));
  return 0;
}

void add_memory_options(CLI::App& command, SearchCommand& options) {
  add_option(
      command, "--memory-limit K|BYTES,...", options.memory_limits,
      "Largest amount of stashes on a worker (default: no limit): one for all, or one for each worker. A "
      "number counts stashes of one stage, or without --chunks stashes of 1/W of the model; with --stash "
      "it is in bytes, such as 12GiB");
  add_option(
      command, "--stash BYTES,...", options.stash,
      "Size of one stash, such as 512MiB: one value for all stages or one for each; without --chunks the "
      "values are of 1/W of the model",
      byte_count());
  std::vector<std::string> known(plan::home_words.begin(), plan::home_words.end());
  known.emplace_back(plan::peer_word);
  const auto read_homes = [&options](const std::vector<std::string>& words) {
    plan::set_homes(options.request, words);
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--homes", read_homes,
          "Homes that the search may choose for a stash (default: worker). With none,worker it may compute F "
          "again before B where memory is short, and works twice. With host or disk it may also copy stashes "
          "there and back (--copy), and works four more times, for orders in which stashes come back at no "
          "time. With peer it may copy them to other workers, and works six more times in all. Each takes up "
          "to the budget")
      ->type_name("HOME,...")
      ->delimiter(',')
      ->check(CLI::IsMember(known));
}

}  // namespace

void add_search(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "search", "Search for a short schedule within a memory limit, and bound how short any schedule can be");
  const auto options = std::make_shared<SearchCommand>();
  add_plugin_option(*command, options->plugins);
  add_size_options(*command, options->request.workers, plan::size_limits::search_workers,
                   options->request.microbatches, plan::size_limits::search_microbatches);
  add_option(*command, "--slices K", options->request.slices,
             "Slices (K) into which each micro-batch is cut along its sequences; durations, bytes, stashes "
             "and the memory limit are of whole micro-batches",
             whole_number(1, plan::size_limits::slices));
  add_option(
      *command, "--chunks C", options->request.chunks,
      "Stages on each worker. Without this option the search tries several numbers; then durations and "
      "sizes are of 1/W of the model, and are divided by the number of stages on a worker",
      whole_number(1, plan::size_limits::search_chunks));
  add_option(*command, "--layout NAME", options->layout,
             "Worker of each stage: loop (stage s on worker s mod W), v (from worker 0 to W-1 and back), any "
             "(default: tries both)",
             CLI::IsMember({"v", "loop", "any"}));
  refuse_tensor(
      *command,
      "search knows chains of stages only; cut the stages of what it finds: starpipe schedule check "
      "found.json --tensor T");
  options->costs.add_to(*command, "1 for each pass");
  options->costs.add_copy_to(*command);
  options->costs.add_bytes_to(*command);
  add_memory_options(*command, *options);
  add_option(*command, "--budget SECONDS", options->search.budget,
             "Seconds that the search may take (default 10); a larger budget tries more",
             decimal_number({.min = 0.01, .max = 1e6}));
  add_option(*command, "--seed N", options->search.seed, "Seed of the random choices (default 1)",
             whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  command->add_flag("--quiet", options->quiet, "Show no progress line");
  options->result.add_to(*command);
  options->result.add_width_to(*command);
  command->footer(
      "Example:\n"
      "  starpipe search --workers 4 --microbatches 8 --chunks 2 --layout v --comm 0.1 --memory-limit 6 "
      "--budget 1");
  command->callback([options, &action] { action = [options] { return search(*options); }; });
}

}  // namespace starpipe::cli
