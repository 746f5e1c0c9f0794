// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/simulate.hpp"

#include "cli/commands/subcommand.hpp"
#include "plan/search/lower_bound.hpp"
#include "runtime/engine/memory_need.hpp"
#include "runtime/report/report.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::cli {
namespace {

struct SimulateOptions {
  ConfigOptions config;
  std::optional<int> workers;
  std::optional<int> ranks;
  CostOptions costs;
  bool per_share = false;
  ResultOptions result;
};

/// The times of the passes without --durations and --comm. All are without recomputation.
struct DefaultTimes {
  plan::Costs costs;
  std::string unit;
  std::string source;  ///< in words
};

DefaultTimes default_times(const runtime::Config& config,
                           const std::optional<runtime::PartitionChoice>& partition,
                           const runtime::Experiment& experiment) {
  if (config.runtime.emulate) {
    return {
        runtime::emulated_costs(*config.runtime.emulate, experiment.network, experiment.schedule.workers()),
        "s", "of runtime.emulate"};
  }
  plan::Costs costs = runtime::costs_by_flops(experiment.network);
  // Only stages of a chain have the units whose times a partition measures.
  if (!partition || !experiment.network.graph.is_chain())
    return {std::move(costs), "", "by FLOPs, 1 for a pass of an average stage"};
  const int slices = runtime::measured_slices(partition->profile, config);
  plan::Costs measured = plan::stage_costs(partition->profile.units, partition->partition.cuts,
                                           partition->stage_kinds, {}, slices);
  if (measured.slices != costs.slices)
    measured.durations =
        plan::durations_of_slices(measured.durations, costs, experiment.schedule.stages(), costs.slices);
  costs.durations = std::move(measured.durations);
  std::string source = "as measured for the partition";
  if (slices != costs.slices) source += ", those of slices by FLOPs";
  if (costs.slices == 1 && !partition->profile.units.front().slices.empty())
    source += ", as sums over slices";
  return {std::move(costs), "s", std::move(source)};
}

/// `policy`: a line about the policy, or empty. `cuts`: a line about the cuts.
std::string summary(std::string_view times, std::string_view policy, std::string_view cuts,
                    const runtime::Experiment& experiment, const plan::PredictedRun& run,
                    const std::vector<runtime::DeviceNeed>& memory, double bound) {
  const auto& [schedule, costs, timeline, unit, reordering, discipline] = run;
  const plan::ShownUnit shown(unit, timeline.makespan);
  const auto number = [&shown](double time) { return fmt::format("{:.4g}", time * shown.factor()); };
  std::string text = fmt::format(
      "{}: {} workers, {} stages, {}, {}{}; {} parameters\n{}times {}\n{}\n", schedule.name(),
      schedule.workers(), schedule.stages(), plan::microbatches_text(schedule), plan::to_string(*discipline),
      plan::describe_homes(schedule), experiment.network.parameter_count(), cuts, times, policy);

  std::vector<TableRow> stages = {
      {"stage", "parameters", shown.heading("F"), shown.heading("B"), shown.heading("W"), "output", "stash"}};
  const plan::Costs whole = plan::costs_of_microbatches(costs);
  for (int s = 0; s < schedule.stages(); ++s) {
    const plan::Durations& d = whole.duration(s);
    const plan::StageSizes& size = whole.size(s);
    std::uint64_t weights = size.weights;
    for (const plan::SharedWeights& shared : costs.shared)
      weights += shared.stages.front() == s ? shared.weights : 0;
    stages.push_back({std::to_string(s), bytes_text(weights), number(d.F), number(d.B), number(d.W),
                      bytes_text(size.activation), bytes_text(size.stash)});
  }
  text += table_text(stages) + "\n";

  std::vector<TableRow> workers = {
      {"worker", "jobs", shown.heading("busy"), "peak stashes", "peak bytes", "all memory"}};
  for (int w = 0; w < schedule.workers(); ++w) {
    const auto i = index(w);
    workers.push_back({std::to_string(w), std::to_string(schedule.order(w).size()), number(timeline.busy[i]),
                       std::to_string(timeline.peak_stashes[i]), bytes_text(timeline.peak_stash_bytes[i]),
                       bytes_text(memory[i].peak.total())});
  }
  for (const plan::TransferKind& kind : plan::transfer_kinds) {
    const bool any = std::ranges::any_of(timeline.received, [&kind](const plan::Transfers& transfers) {
      return (transfers.*kind.member).count > 0;
    });
    if (!any) continue;
    workers.front().push_back(fmt::format("{} in", kind.label));
    for (std::size_t w = 0; w < timeline.received.size(); ++w) {
      const plan::Received& received = timeline.received[w].*kind.member;
      workers[w + 1].push_back(fmt::format("{} ({})", received.count, bytes_text(received.bytes)));
    }
  }
  text += table_text(workers) + "\n";

  const auto with_unit = [&](double time) {
    return fmt::format("{:.6g}{}{}", time * shown.factor(), shown.name().empty() ? "" : " ", shown.name());
  };
  return text + plan::makespan_text(timeline, with_unit) +
         fmt::format("{:<31}at least {}\n", "any order on these workers", with_unit(bound));
}

/// Replaces the costs that were given on the command line.
void apply(const SimulateOptions& options, plan::Costs& costs, std::string& unit,
           const plan::Schedule& schedule) {
  const plan::Costs before = costs;
  options.costs.apply(costs, unit, options.per_share ? schedule.workers() : schedule.stages());
  if (options.per_share) {
    plan::Costs of_shares;
    of_shares.durations = costs.durations;
    costs.durations = plan::costs_of_stages(of_shares, schedule.workers(), schedule.stages()).durations;
  }
  options.costs.divide_among_slices(costs, before, schedule);
}

/// Replaces the links by those of `runtime.links`, unless the command line gives others.
void apply_links(const SimulateOptions& options, const runtime::Config& config,
                 const plan::Schedule& schedule, plan::Costs& costs, const std::string& unit) {
  if (config.runtime.links_file.empty() || options.costs.gives_links()) return;
  if (unit != "s") {
    print_message(
        "starpipe: runtime.links: does not count, since the durations have no unit; --durations or "
        "schedule.partition give seconds\n");
    return;
  }
  costs = runtime::with_links_of_ranks(std::move(costs), config.runtime, schedule.workers(),
                                       options.ranks.value_or(schedule.workers()));
}

/// Returns the workers of each of the ranks of --ranks. Throws InputError if --ranks would change nothing.
int workers_of_rank(int ranks, const plan::Costs& costs, int workers) {
  if (!costs.links.takes_time() || !costs.prefetch)
    throw InputError("--ranks: changes nothing without prefetch or where transfers take no time");
  if (workers % ranks != 0)
    throw InputError(fmt::format("--ranks: {} workers cannot be divided among {} ranks", workers, ranks));
  return workers / ranks;
}

int simulate(const SimulateOptions& options) {
  if (options.per_share && !options.costs.gives_durations())
    throw InputError(
        "--per-share: applies to the times of --durations; the model gives the times of its stages");
  ConfigOptions configured = options.config;
  if (options.workers) configured.set("schedule.workers", std::to_string(*options.workers), "--workers");
  runtime::Config config = configured.load();
  options.result.check(options.costs.inputs(inputs_of(config)));
  const std::string policy = runtime::describe_other_policy(config);
  const std::optional<runtime::PartitionChoice> partition = runtime::choose_partition(config);
  if (partition) config = runtime::with_partition(std::move(config), *partition);
  const runtime::Experiment experiment = runtime::make_experiment(config);
  runtime::check_start(config, experiment.network);
  runtime::require_pairs(config, experiment.schedule);
  DefaultTimes times = default_times(config, partition, experiment);
  if (options.costs.gives_durations()) times.source = "of --durations";
  plan::Costs& costs = times.costs;
  apply(options, costs, times.unit, experiment.schedule);
  apply_links(options, config, experiment.schedule, costs, times.unit);
  if (options.ranks)
    costs.workers_of_rank = workers_of_rank(*options.ranks, costs, experiment.schedule.workers());
  const plan::Timeline timeline = plan::simulate(experiment.schedule, costs);
  const std::vector<runtime::DeviceNeed> memory =
      runtime::memory_need_of(config, experiment, costs, timeline);
  const plan::PredictedRun run{experiment.schedule,  costs, timeline, times.unit, experiment.reordering,
                               experiment.discipline};
  options.result.outputs().write("--timeline", [&] { return plan::predicted_svg(run); });
  options.result.outputs().write("--trace", [&] { return plan::predicted_trace(run); });
  if (!options.result.is_text() && !policy.empty()) print_message("starpipe: " + policy);
  const std::string cuts =
      partition ? runtime::describe_partition(partition) : runtime::describe_cuts(config, experiment);
  const std::string unequal = runtime::describe_unequal_stages(config, experiment);
  if (!unequal.empty() && !options.costs.gives_durations()) print_message("starpipe: " + unequal);
  const double bound =
      plan::bound_of_makespan(plan::placement_bound(experiment.schedule, costs), timeline.makespan);
  options.result.show(run,
                      [&] { return summary(times.source, policy, cuts, experiment, run, memory, bound); },
                      {{"cuts", experiment.network.cuts},
                       {"lower_bound", bound},
                       {"memory", runtime::memory_json(memory)},
                       {"memory_over_time", runtime::memory_over_time_json(memory, config.runtime)}});
  return 0;
}

}  // namespace

void add_simulate(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("simulate", "Predict the run that `train` would do, without doing it");
  const auto options = std::make_shared<SimulateOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  add_option(*command, "--workers W", options->workers, "Number of workers, in place of schedule.workers",
             whole_number(1, plan::size_limits::workers));
  add_option(
      *command, "--ranks N", options->ranks,
      "Ranks of GPUs among which the workers are divided: a rank receives a datum of another rank once "
      "for all of its workers, and transfers from one of them to another follow each other; without it, "
      "each worker is a rank",
      whole_number(1, plan::size_limits::workers));
  options->costs.add_to(*command,
                        "the seconds of runtime.emulate; with schedule.partition the measured times; else in "
                        "proportion to the FLOPs of each stage, 1 for an average stage",
                        "those of runtime.links or runtime.emulate, else 0");
  options->costs.add_copy_to(*command);
  options->costs.add_no_prefetch_to(*command);
  command->add_flag("--per-share", options->per_share,
                    "The times of --durations are of 1/W of the model, whatever the number of stages");
  options->result.add_to(*command);
  options->result.outputs().add(*command, "--timeline FILE.svg", "Also draw the run as an SVG image");
  options->result.outputs().add(*command, "--trace FILE.json",
                                "Also write the run as a trace for ui.perfetto.dev");
  command->footer(
      "Example:\n"
      "  starpipe simulate experiments/quickstart.yaml --set schedule.name=gpipe");
  command->callback([options, &action] { action = [options] { return simulate(*options); }; });
}

}  // namespace starpipe::cli
