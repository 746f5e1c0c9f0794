// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include "cli/commands/subcommand.hpp"
#include "cli/input/yaml.hpp"
#include "plan/formats/results.hpp"
#include "plan/schedules/pattern.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::cli {
namespace {

struct PeriodicOptions {
  std::string file;
  int microbatches = 16;
  plan::PeriodicRequest request;
  ResultOptions result;
};

/// A stage as the file has it; keys left out keep their defaults.
struct FileStage {
  plan::Durations times;
  plan::ChainStage stage;
  std::optional<int> worker;
};
plan::Durations& times_of(FileStage& stage) { return stage.times; }
using Key = MapKey<FileStage>;
// Without W: the theory's B is the whole backward pass.
constexpr std::array stage_keys = {
    time_key<0, FileStage, times_of>,
    time_key<1, FileStage, times_of>,
    Key{"weights", [](const YamlValue& v, FileStage& s) { s.stage.weights = v.number(amounts); }},
    Key{"activation", [](const YamlValue& v, FileStage& s) { s.stage.activation = v.number(amounts); }},
    Key{"worker", [](const YamlValue& v,
                     FileStage& s) { s.worker = v.whole(0, plan::size_limits::periodic_stages - 1); }},
};

void read_stage(const YamlValue& map, plan::PeriodicRequest& into) {
  FileStage read;
  read_map<FileStage>(map, stage_keys, read);
  read.stage.forward = read.times.F;
  read.stage.backward = read.times.B;
  into.chain.push_back(read.stage);
  if (read.worker) into.workers.push_back(*read.worker);
  if (!into.workers.empty() && into.workers.size() != into.chain.size()) {
    map.fail("worker must be given for all stages or for none");
  }
}

void read_chain(const std::string& file, plan::PeriodicRequest& into) {
  const YamlValue root(load_yaml(file), file);
  const std::size_t stages = root.node().size();
  if (root.node().IsSequence() && (stages < 1 || stages > plan::size_limits::periodic_stages))
    root.fail(fmt::format("{} stages, expected 1 to {}", stages, plan::size_limits::periodic_stages));
  for (const YamlValue& stage : root.items_in(file, "a list with one map for each stage"))
    read_stage(stage, into);
}

/// Returns the starts of a pass in the period, each with its shift, such as "0 +2, 4 +3".
std::string starts(const plan::PeriodicPattern& pattern, int stage, plan::Pass pass) {
  std::vector<std::pair<double, int>> found;
  for (const plan::PeriodicOperation& op : pattern.operations) {
    if (op.stage == stage && op.pass == pass) found.emplace_back(op.start, op.shift);
  }
  std::ranges::sort(found);
  std::vector<std::string> words;
  words.reserve(found.size());
  for (const auto& [start, shift] : found) words.push_back(fmt::format("{:.6g} {:+}", start, shift));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string summary(const plan::PeriodicResult& result, const plan::PeriodicRequest& request) {
  const plan::PeriodicPattern& pattern = result.pattern;
  std::string text =
      fmt::format("period {:.6g} for {} micro-batch{}: {:.6g} each\n", pattern.period, pattern.microbatches,
                  pattern.microbatches == 1 ? "" : "es", pattern.normalized_period());
  if (result.best_of > 0) text += fmt::format("no pattern of up to {} is shorter; ", result.best_of);
  text += fmt::format("no schedule of this placement takes less than {:.6g}\n\n", result.bound);

  const std::vector<int> live = plan::concurrent_activations(pattern, request.chain);
  std::vector<TableRow> stages = {{"stage", "worker", "F starts +shift", "BW starts +shift", "stashes"}};
  for (int s = 0; s < static_cast<int>(request.chain.size()); ++s) {
    const int worker = request.workers.empty() ? s : request.workers[index(s)];
    stages.push_back({std::to_string(s), std::to_string(worker), starts(pattern, s, plan::Pass::F),
                      starts(pattern, s, plan::Pass::BW), std::to_string(live[index(s)])});
  }
  std::vector<TableRow> workers = {{"worker", "memory"}};
  for (const double memory : plan::pattern_memory(pattern, request.chain)) {
    workers.push_back({std::to_string(workers.size() - 1), fmt::format("{:.6g}", memory)});
  }
  return text + table_text(stages) + "\n" + table_text(workers) + "\n";
}

/// Solves the request. The message of a refused request names one of its parts; the command names the option
/// instead.
plan::PeriodicResult solve(const plan::PeriodicRequest& request) {
  try {
    return plan::solve_periodic(request);
  } catch (const plan::RequestError& error) {
    throw InputError(fmt::format("--{}", error.what()));
  }
}

int periodic(PeriodicOptions options) {
  options.result.check(std::array{std::filesystem::path(options.file)});
  read_chain(options.file, options.request);
  const std::vector<plan::ChainStage>& chain = options.request.chain;
  const int microbatches = options.microbatches;
  plan::require_few_jobs("--microbatches", std::ssize(chain), microbatches,
                         plan::size_limits::periodic_pairs);
  const plan::PeriodicResult result = solve(options.request);
  const plan::Schedule schedule = plan::unrolled("periodic", result.pattern, chain, microbatches);
  const plan::Costs costs = plan::costs_of_chain(chain);
  const plan::Timeline timeline = plan::simulate(schedule, costs);
  const plan::PredictedRun run{schedule, costs, timeline};
  options.result.show(
      run, [&] { return summary(result, options.request) + options.result.drawn(run); },
      plan::periodic_json(result, chain));
  return 0;
}

}  // namespace

void add_periodic(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "periodic", "Find the shortest periodic schedule of a chain of stages within a memory limit");
  const auto options = std::make_shared<PeriodicOptions>();
  add_option(*command, "file CHAIN.yaml", options->file,
             "List with a map for each stage: times F and B (default 1), memory of its weights (default 0), "
             "memory of one stash as activation (default 1), and worker (default: one worker for each stage)")
      ->required();
  add_option(*command, "--microbatches B", options->microbatches,
             "Number of micro-batches in the schedule that is shown (default 16)", whole_number(1, 1 << 20))
      ->capture_default_str();
  add_option(*command, "--memory M", options->request.memory,
             "Memory of each worker, for weights and stashes (default: no limit)",
             decimal_number(not_negative));
  add_option(*command, "--repeat K", options->request.repeat,
             "Try patterns of up to K micro-batches (default 1: 1F1B* with the shortest period)",
             whole_number(1, plan::size_limits::periodic_repetitions));
  add_option(*command, "--period T", options->request.period,
             "Take 1F1B* with this period instead of searching", decimal_number(positive))
      ->excludes("--repeat");
  options->result.add_to(*command);
  options->result.add_width_to(*command);
  command->footer(
      "The schedule repeats the pattern and starts each pass as early as the order on its worker allows.\n"
      "Example:\n"
      "  starpipe periodic chain.yaml --memory 12 --repeat 3");
  command->callback([options, &action] { action = [options] { return periodic(*options); }; });
}

}  // namespace starpipe::cli
