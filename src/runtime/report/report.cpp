// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/report.hpp"

#include <algorithm>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "runtime/host/topology.hpp"
#include "runtime/report/rank_table.hpp"
#include "runtime/report/versions.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/durations_json.hpp"
#include "plan/formats/reordering_json.hpp"
#include "plan/formats/explanation_json.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/report/memory_json.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::ordered_json;

// The chosen cuts, the load of each worker, and the times of the units.
ordered_json to_json(const PartitionChoice& choice) {
  const auto& [profile, profile_file, chosen, placement, stage_kinds] = choice;
  ordered_json json = {{"cuts", chosen.cuts},
                       {"stage_workers", chosen.stage_workers},
                       {"bottleneck", chosen.bottleneck},
                       {"lower_bound", chosen.lower_bound}};
  for (const plan::WorkerLoad& load : chosen.loads) json["loads"].push_back(load.load());
  for (const plan::UnitCosts& unit :
       profile.units) {  // "layers" is the key's old name; its elements are units
    ordered_json& one = json["layers"].emplace_back(ordered_json{{"name", unit.name}});
    if (profile.devices.empty()) one.update(plan::durations_json(unit.time));
    for (std::size_t kind = 0; kind < profile.devices.size(); ++kind)
      one[profile.devices[kind]] = plan::durations_json(unit.on(static_cast<int>(kind)));
  }
  return json;
}

// How many updates were skipped, and where the first value of each that was not finite comes from. Steps
// count from 1, as in the progress lines.
ordered_json skipped_steps(const TrainRecord& record, const plan::Schedule& schedule) {
  ordered_json steps = ordered_json::array();
  for (const auto& [step, first] : record.skipped) {
    ordered_json& skipped = steps.emplace_back(ordered_json{{"step", step + 1}});
    if (!first.pass) {
      skipped["parameter"] = first.parameter;
      continue;
    }
    const plan::Job job = schedule.job(*first.pass);
    skipped["microbatch"] = job.microbatch;
    skipped["stage"] = job.stage;
    skipped["pass"] = plan::to_string(job.pass);
  }
  return {{"count", record.skipped.size()}, {"steps", std::move(steps)}};
}

// Of which steps the gradient was clipped. Steps count from 1.
ordered_json clipped_steps(const TrainRecord& record) {
  ordered_json steps = ordered_json::array();
  for (const int step : record.clipped) steps.push_back(step + 1);
  return {{"count", record.clipped.size()}, {"steps", std::move(steps)}};
}

// Steps count from 1, so a checkpoint's step is the last one done.
ordered_json to_json(const CheckpointSummary& checkpoints) {
  ordered_json pauses = ordered_json::array();
  for (const auto& [step, seconds] : checkpoints.pauses)
    pauses.push_back(ordered_json{{"step", step}, {"pause_seconds", seconds}});
  return {
      {"count", checkpoints.pauses.size()}, {"failed", checkpoints.failures}, {"steps", std::move(pauses)}};
}

ordered_json evaluations(const TrainRecord& record) {
  ordered_json list = ordered_json::array();
  for (const auto& [step, loss, microbatches, seconds] : record.evaluations)
    list.push_back({{"step", step}, {"loss", loss}, {"microbatches", microbatches}, {"seconds", seconds}});
  return list;
}

ordered_json both(ordered_json predicted, ordered_json measured) {
  return {{"predicted", std::move(predicted)}, {"measured", std::move(measured)}};
}

// Number and bytes of one kind of transfer that each worker received.
ordered_json transfers(const plan::Timeline& predicted, const std::vector<WorkerRecord>& measured,
                       plan::Received plan::Transfers::*kind) {
  ordered_json json;
  for (const auto& [name, what] :
       {std::pair{"count", &plan::Received::count}, std::pair{"bytes", &plan::Received::bytes}}) {
    std::vector<std::uint64_t> expected;
    std::vector<std::uint64_t> seen;
    for (const plan::Transfers& to : predicted.received) expected.push_back(to.*kind.*what);
    for (const WorkerRecord& worker : measured) seen.push_back(worker.received.*kind.*what);
    json[name] = both(expected, seen);
  }
  return json;
}

template <class Value>
std::vector<Value> by_worker(const std::vector<WorkerRecord>& workers, Value WorkerRecord::*what) {
  std::vector<Value> values;
  for (const WorkerRecord& worker : workers) values.push_back(worker.*what);
  return values;
}

}  // namespace

ordered_json report_head(const Config& config, const std::optional<PartitionChoice>& partition,
                         const std::vector<RankLocation>& locations) {
  ordered_json report;
  report["config"] = config_json(config);
  report["config_file"] = config.source;
  report["versions"] = versions();
  report["machine"] = {{"name", locations.front().machine},
                       {"processor", Topology::host().processor()},
                       {"cores", locations.front().cores},
                       {"ranks", locations.size()}};
  report["ranks"] = ranks_json(locations);
  report["time"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  if (partition) report["partition"] = to_json(*partition);
  return report;
}

ordered_json make_report(const Config& config, const std::optional<PartitionChoice>& partition,
                         const Experiment& experiment, const std::vector<RankLocation>& locations,
                         const TrainRecord& record, const plan::ComparedRun& run,
                         const Measurement& measurement) {
  const plan::Timeline& predicted = run.predicted.timeline;
  const plan::Timeline& measured = run.measured.timeline;
  ordered_json report = report_head(config, partition, locations);
  report["policy"] = {{"requested", record.requested_policy}, {"ran", record.policy}};
  report["discipline"] = plan::to_string(experiment.discipline);
  if (experiment.reordering) report["reordered"] = plan::reordering_json(*experiment.reordering);
  report["workers"] = experiment.schedule.workers();
  report["stages"] = experiment.schedule.stages();
  report["microbatches"] = experiment.schedule.microbatches();
  report["parameters"] = experiment.network.parameter_count();
  report["emulated"] = experiment.emulated.has_value();
  report["first_step"] = record.first_step + 1;
  report["complete"] = record.is_complete;
  if (!experiment.emulated) {
    report["losses"] = record.losses;
    report["gradient_norms"] = record.gradient_norms;
    report["learning_rates"] = record.learning_rates;
  }
  if (config.training.optimizer.clip) report["clipped_steps"] = clipped_steps(record);
  if (config.training.nonfinite == NonFinitePolicy::skip)
    report["skipped_steps"] = skipped_steps(record, experiment.schedule);
  if (record.checkpoints) report["checkpoints"] = to_json(*record.checkpoints);
  if (experiment.validation) report["evaluations"] = evaluations(record);
  report["step_seconds"] = record.step_seconds;
  report[experiment.data->sample_word() + "_per_second"] = record.samples_per_second;

  ordered_json offsets = ordered_json::array();
  for (int step = record.first_step; step < std::min(record.first_step + 3, config.training.steps); ++step) {
    ordered_json of_step = ordered_json::array();
    for (int b = 0; b < experiment.schedule.microbatches(); ++b)
      of_step.push_back(experiment.data->offsets(step, b));
    offsets.push_back(std::move(of_step));
  }
  if (!offsets.at(0).at(0).empty()) report["offsets"] = std::move(offsets);

  report["makespan"] = both(predicted.makespan, measured.makespan);
  report["makespan"]["all_measured"] = measurement.makespans();
  if (measured.gradients_summed)
    report["gradients_summed"] = both(*predicted.gradients_summed, *measured.gradients_summed);
  report["bubble_fraction"] = both(predicted.bubble_fraction, measured.bubble_fraction);
  report["device_span"] = both(predicted.device_span, measured.device_span);
  report["device_bubble_fraction"] = both(predicted.device_bubble_fraction, measured.device_bubble_fraction);
  report["peak_activations"] =
      both(predicted.peak_stashes, by_worker(measurement.workers(), &WorkerRecord::peak_stashes));
  report["peak_activation_bytes"] =
      both(predicted.peak_stash_bytes, by_worker(measurement.workers(), &WorkerRecord::peak_stash_bytes));
  if (!config.runtime.memory_limits.empty()) {
    const auto expected = memory_need_of(config, experiment, run.costs, predicted);
    const auto found = memory_need_of(config, experiment, run.costs, measured);
    report["memory"] = both(memory_json(expected), memory_json(found));
    report["memory_over_time"] =
        both(memory_over_time_json(expected, config.runtime), memory_over_time_json(found, config.runtime));
  }
  for (const plan::TransferKind& kind : plan::transfer_kinds) {
    report["received"][kind.key] = transfers(predicted, measurement.workers(), kind.member);
  }
  if (record.rank_bytes_known) {
    report["bytes_between_ranks"] = both(record.rank_bytes_predicted, record.rank_bytes_measured);
  }
  if (record.gpus)
    report["gpus"] = {{"memory", to_json(record.gpus->memory)}, {"copies", to_json(record.gpus->copies)}};
  ordered_json durations = ordered_json::array();
  for (const plan::Durations& times : run.costs.durations) durations.push_back(plan::durations_json(times));
  report["durations"] = std::move(durations);
  if (run.costs.links.uniform()) report["transfer_delay"] = run.costs.link(0, 1).alpha;
  report["explain"] = plan::compared_run_json(run);
  report["explain"].update(plan::explanation_json(run));
  return report;
}

}  // namespace starpipe::runtime
