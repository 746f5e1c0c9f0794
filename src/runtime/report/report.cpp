// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/explanation.hpp"
#include "plan/formats/schedule_values.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/report/info.hpp"
#include "runtime/session/policy_choice.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::ordered_json;

// Returns the chosen cuts, the load of each worker, and the times of the units.
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

// Returns the number of skipped updates, and the origin of the first value of each that was not finite. Steps
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

// Returns the steps whose gradient was clipped. Steps count from 1.
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

// Returns number and bytes of one kind of transfer that each worker received.
ordered_json transfers(const plan::Timeline& predicted, const std::vector<WorkerRecord>& measured,
                       plan::Received plan::Transfers::*kind) {
  ordered_json json;
  for (const auto& [name, what] :
       {std::pair{"count", &plan::Received::count}, std::pair{"bytes", &plan::Received::bytes}}) {
    ordered_json& values = json[name] = both(ordered_json::array(), ordered_json::array());
    for (const plan::Transfers& to : predicted.received) values["predicted"].push_back(to.*kind.*what);
    for (const WorkerRecord& worker : measured) values["measured"].push_back(worker.received.*kind.*what);
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
  std::string pus;  // of all ranks on the first rank's machine
  for (const RankLocation& rank : locations) {
    if (rank.machine != locations.front().machine) continue;
    pus += (pus.empty() ? "" : ",") + rank.binding;
  }
  ordered_json report;
  report["config"] = config_json(config);
  report["config_file"] = config.source;
  report["versions"] = versions();
  report["machine"] = {{"name", locations.front().machine},
                       {"processor", Topology::host().processor()},
                       {"cores", Topology::host().cores(pus)},
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
  report["cuts"] = experiment.network.cuts;
  report["microbatches"] = experiment.schedule.whole_microbatches();
  report["parameters"] = experiment.network.parameter_count();
  report["emulated"] = experiment.emulated;
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
    for (int b = 0; b < experiment.schedule.whole_microbatches(); ++b)
      of_step.push_back(experiment.data->offsets(step, b));
    offsets.push_back(std::move(of_step));
  }
  if (!offsets.at(0).at(0).empty()) report["offsets"] = std::move(offsets);

  report["makespan"] = both(predicted.makespan, measured.makespan);
  report["makespan"]["all_measured"] = measurement.makespans();
  if (measured.gradients_summed)
    report["gradients_summed"] = both(*predicted.gradients_summed, *measured.gradients_summed);
  report["bubble_fraction"] = both(predicted.bubble_fraction, measured.bubble_fraction);
  if (experiment.schedule.recomputes())
    report["recomputed_fraction"] = both(predicted.recomputed_fraction, measured.recomputed_fraction);
  report["device_span"] = both(predicted.device_span, measured.device_span);
  report["device_bubble_fraction"] = both(predicted.device_bubble_fraction, measured.device_bubble_fraction);
  report["peak_stashes"] =
      both(predicted.peak_stashes, by_worker(measurement.workers(), &WorkerRecord::peak_stashes));
  report["peak_stash_bytes"] =
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
  if (!record.memory_predicted.empty())
    report["main_memory"] = both(record.memory_predicted, record.memory_measured);
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

std::string evaluation_text(double loss, int microbatches, const model::Dataset& data) {
  const model::EvaluatedSamples samples = data.evaluated(microbatches);
  const std::string amount =
      samples.all == 0 ? ""
      : samples.total() == samples.all
          ? fmt::format(": all {} {}", samples.all, data.sample_word())
          : fmt::format(": the first {} of {} {}", samples.total(), samples.all, data.sample_word());
  return fmt::format("evaluation  loss {}{} ({} micro-batch{}{})", loss_text(loss),
                     std::isfinite(loss) ? "" : ", which is not finite", microbatches,
                     microbatches == 1 ? "" : "es", amount);
}

nlohmann::ordered_json memory_json(const std::vector<DeviceNeed>& needs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const DeviceNeed& need : needs) {
    nlohmann::ordered_json& parts = all.emplace_back();
    for (const auto& [name, bytes] : memory_parts) parts[name] = need.peak.*bytes;
  }
  return all;
}

nlohmann::ordered_json memory_over_time_json(const std::vector<DeviceNeed>& needs,
                                             const RuntimeConfig& config) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (std::size_t w = 0; w < needs.size(); ++w) {
    nlohmann::ordered_json& of_worker = all.emplace_back(nlohmann::ordered_json::object());
    if (const auto limit = config.memory_limit_of(static_cast<int>(w))) of_worker["limit"] = *limit;
    for (const auto& [time, bytes] : needs[w].over_time) {
      of_worker["time"].push_back(time);
      of_worker["bytes"].push_back(bytes);
    }
  }
  return all;
}

std::string describe_other_policy(const Config& config) {
  const PolicyChoice choice = configured_policy(config);
  if (follows_schedule(choice)) return "";
  return fmt::format("predicted for the policy starpipe; {} chooses {} at run time, so its run may differ\n",
                     choice.name,
                     choice.control == StarpuControl::on_worker ? "the order" : "workers and order");
}

namespace {

// Returns how many times the mean work of a worker the busiest worker has.
double busiest_of_mean(const plan::Schedule& schedule, const plan::Costs& costs) {
  std::vector<double> work(index(schedule.workers()), 0);
  for (const plan::JobId id : schedule.order()) {
    const plan::Job job = schedule.job(id);
    if (!plan::is_copy(job.pass)) work[index(schedule.compute(id))] += costs.duration(job).of(job.pass);
  }
  const double all = std::reduce(work.begin(), work.end());
  return all > 0 ? std::ranges::max(work) * static_cast<double>(work.size()) / all : 1;
}

std::string_view source_of_times(const Experiment& experiment) {
  return experiment.emulated ? "runtime.emulate" : "FLOPs";
}

}  // namespace

std::string describe_cuts(const Config& config, const Experiment& experiment) {
  const model::Network& network = experiment.network;
  return fmt::format("cuts [{}] of {} units{}: the busiest worker has {:.2f} times the mean work, by {}\n",
                     fmt::join(network.cuts, ", "), model::unit_names(network.config).size(),
                     config.schedule.cuts.empty() ? ", balanced by FLOPs" : "",
                     busiest_of_mean(experiment.schedule, experiment.costs), source_of_times(experiment));
}

std::string describe_unequal_stages(const Config& config, const Experiment& experiment) {
  constexpr double much = 1.25;
  if (!config.schedule.file) return "";
  const double found = busiest_of_mean(experiment.schedule, experiment.costs);
  if (found < much * busiest_of_mean(experiment.schedule, {})) return "";
  return fmt::format(
      "{}: the stages of the model are unequal: the busiest worker has {:.2f} times the mean work, by {}; "
      "search and schedule plan with equal stages unless --durations has a time for each\n",
      config.schedule.file->string(), found, source_of_times(experiment));
}

std::uint64_t bytes_between_ranks(const TaskGraph& graph, const WorkerMap& map) {
  std::set<std::pair<std::size_t, int>> moves;
  for (const Task& task : graph.tasks()) {
    const int reader = map.rank_of(task.worker);
    for (const DataAccess& access : task.data) {
      if (access.access == Access::read && map.rank_of(graph.data()[access.datum].worker) != reader) {
        moves.emplace(access.datum, reader);
      }
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [datum, rank] : moves) bytes += graph.data()[datum].size * sizeof(float);
  return bytes;
}

namespace {

// Returns "x" when prediction and measurement agree, "x / y" when they do not.
std::string predicted_and_measured(const std::string& predicted, const std::string& measured) {
  return predicted == measured ? predicted : predicted + " / " + measured;
}

// Returns the predicted and measured values of a whole step. Cells of the last column are padded so that
// signs and decimal points line up.
std::string whole_run_table(const plan::Timeline& predicted, const plan::Timeline& measured,
                            const TrainRecord& record) {
  constexpr std::array columns = {TableColumn{Align::left, 28}, TableColumn{Align::right, 10},
                                  TableColumn{Align::right, 10}, TableColumn{Align::left}};
  const auto milliseconds = [](double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); };
  std::vector<TableRow> rows = {{"", "predicted", "measured", "difference"}};
  const auto add_time = [&](const char* name, double expected, double found) {
    rows.push_back({name, milliseconds(expected), milliseconds(found),
                    fmt::format("{:>10}", difference_text(found / expected - 1))});
  };
  add_time("makespan", predicted.makespan, measured.makespan);
  if (measured.gradients_summed)
    add_time("with gradients summed", *predicted.gradients_summed, *measured.gradients_summed);
  const auto add_fraction = [&](const char* name, double expected, double found) {
    rows.push_back({name, percent_text(expected), percent_text(found),
                    fmt::format("{:>+4.1f} points", (found - expected) * 100)});
  };
  add_fraction("bubble fraction", predicted.bubble_fraction, measured.bubble_fraction);
  if (predicted.recomputed_fraction > 0)
    add_fraction("recomputation", predicted.recomputed_fraction, measured.recomputed_fraction);
  const auto add_count = [&](const char* name, std::size_t count) {
    if (count > 0) rows.push_back({name, "", fmt::format("{} of {}", count, record.step_seconds.size())});
  };
  add_count("gradients clipped", record.clipped.size());
  add_count("updates skipped", record.skipped.size());
  if (record.checkpoints && !record.checkpoints->pauses.empty()) {
    const double longest =
        std::ranges::max(record.checkpoints->pauses, {}, &CheckpointPause::seconds).seconds;
    rows.push_back({"longest pause of a checkpoint", "", milliseconds(longest)});
  }
  if (record.rank_bytes_known) {
    const bool equal = record.rank_bytes_predicted == record.rank_bytes_measured;
    rows.push_back({"bytes between ranks in all", bytes_text(record.rank_bytes_predicted),
                    bytes_text(record.rank_bytes_measured),
                    fmt::format("{:>10}", equal ? "equal" : "DIFFERS")});
  }
  return table_text(rows, columns);
}

std::string worker_table(const plan::Timeline& predicted, std::span<const WorkerRecord> measured) {
  constexpr std::array columns = {TableColumn{Align::left, 8},   TableColumn{Align::right, 12},
                                  TableColumn{Align::right, 20}, TableColumn{Align::right, 14},
                                  TableColumn{Align::right, 14}, TableColumn{Align::right, 14},
                                  TableColumn{Align::right, 14}, TableColumn{Align::right, 14}};
  std::vector<TableRow> rows = {{"", "peak", "peak"}, {"worker", "stashes", "stash bytes"}};
  const auto is_shown = [&](const plan::TransferKind& kind) {
    const bool is_shown_if_any = kind.member == &plan::Transfers::reloads ||
                                 kind.member == &plan::Transfers::keys_values ||
                                 kind.member == &plan::Transfers::keys_values_gradients;
    return kind.always_shown ||
           (is_shown_if_any && std::ranges::any_of(predicted.received, [&](const plan::Transfers& to) {
              return (to.*kind.member).count > 0;
            }));
  };
  for (const plan::TransferKind& kind : plan::transfer_kinds) {
    if (!is_shown(kind)) continue;
    rows[0].emplace_back(kind.label);
    rows[1].emplace_back("received");
  }
  for (std::size_t w = 0; w < measured.size(); ++w) {
    const WorkerRecord& worker = measured[w];
    TableRow& row =
        rows.emplace_back(TableRow{std::to_string(w),
                                   predicted_and_measured(fmt::to_string(predicted.peak_stashes[w]),
                                                          fmt::to_string(worker.peak_stashes)),
                                   predicted_and_measured(bytes_text(predicted.peak_stash_bytes[w]),
                                                          bytes_text(worker.peak_stash_bytes))});
    for (const plan::TransferKind& kind : plan::transfer_kinds) {
      if (!is_shown(kind)) continue;
      row.push_back(predicted_and_measured(fmt::to_string((predicted.received[w].*kind.member).count),
                                           fmt::to_string((worker.received.*kind.member).count)));
    }
  }
  return table_text(rows, columns);
}

}  // namespace

std::string training_table(const plan::ComparedRun& run, std::span<const WorkerRecord> workers,
                           const TrainRecord& record) {
  const plan::Timeline& predicted = run.predicted.timeline;
  std::string text =
      whole_run_table(predicted, run.measured.timeline, record) + "\n" + plan::difference_table(run) + "\n" +
      plan::idle_table(run) + "\n" + worker_table(predicted, workers) +
      "One figure where prediction and measurement are equal, \"predicted / measured\" where they "
      "are not.\n";
  if (record.gpus) text += to_text(record.gpus->memory) + to_text(record.gpus->copies);
  return text;
}

}  // namespace starpipe::runtime
