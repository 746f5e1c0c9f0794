// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/commands/train.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "runtime/commands/run_on_ranks.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/metrics.hpp"
#include "runtime/report/rank_bytes.hpp"
#include "runtime/report/report.hpp"
#include "runtime/report/training_table.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/base/environment.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/numbers.hpp"
#include "starpipe/base/progress.hpp"
#include "starpipe/model/weights.hpp"
#include "starpipe/plan/drawing/curves_svg.hpp"
#include "starpipe/plan/drawing/explained_run.hpp"
#include "starpipe/plan/drawing/timeline_svg.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/formats/trace_json.hpp"
#include "starpipe/runtime/ranks/lost_rank.hpp"
#include "starpipe/runtime/setup/expected_costs.hpp"
#include "starpipe/runtime/setup/partition_choice.hpp"
#include "starpipe/runtime/setup/profile.hpp"

namespace starpipe::runtime {
namespace {

// Shows each step on a terminal, and about twenty steps of a run in a log.
class StepProgress {
 public:
  StepProgress(int steps, std::string sample_word) : steps_(steps), sample_word_(std::move(sample_word)) {}

  /// A log shows only some steps, and every step whose update was skipped.
  void show(int step, std::optional<double> loss, const StepResult& result, double samples_per_second) {
    const bool skipped = result.skipped_for.has_value();
    const std::string norm = result.gradient_norm ? fmt::format("  norm {:#.4g}{}", *result.gradient_norm,
                                                                result.clipped ? " clipped" : "")
                                                  : "";
    const std::string text =
        fmt::format("step {:>{}}/{}  {}{}  {:.0f} {}/s{}{}", step + 1, fmt::formatted_size("{}", steps_),
                    steps_, loss ? "loss " + loss_text(*loss) : "emulated", norm, samples_per_second,
                    sample_word_, time_left(step), skipped ? "  update skipped: infinity or NaN" : "");
    const bool last = step + 1 == steps_;
    const bool logged = !line_.on_terminal() && step % std::max(1, steps_ / 20) == 0;
    if (last && !line_.on_terminal() && launcher_rank()) {
      // A launcher forwards standard error and standard output apart, so lines keep their order only within
      // one of the two.
      fmt::print("{}\n", text);
    } else if (last || logged || skipped) {
      line_.keep(text);
    } else {
      line_.show(text);
    }
  }

 private:
  // The first step warms up, so the others are taken to last as long as those after it. Not for short runs,
  // whose end one sees.
  [[nodiscard]] std::string time_left(int step) {
    const auto now = std::chrono::steady_clock::now();
    if (step == 0) {
      after_first_ = now;
      return "";
    }
    const double seconds =
        std::chrono::duration<double>(now - after_first_).count() / step * (steps_ - step - 1);
    if (seconds < 1) return "";
    const auto whole = static_cast<std::int64_t>(seconds);
    return whole < 3600 ? fmt::format("  {}:{:02} left", whole / 60, whole % 60)
                        : fmt::format("  {}:{:02}:{:02} left", whole / 3600, whole / 60 % 60, whole % 60);
  }

  int steps_;
  std::string sample_word_;
  ProgressLine line_;
  std::chrono::steady_clock::time_point after_first_;  // when the first step had ended
};

void check_outputs(const TrainOutputs& outputs) {
  if (outputs.report) require_writable("--report", *outputs.report);
  if (outputs.trace) require_writable("--trace", *outputs.trace);
  if (outputs.timeline) require_writable("--timeline", *outputs.timeline);
  if (outputs.curves) require_writable("--curves", *outputs.curves);
  if (outputs.metrics) MetricsFile::require_new(*outputs.metrics);
  if (outputs.save_weights) require_writable("--save-weights", *outputs.save_weights);
}

// Runs all steps. The record is complete on rank 0.
TrainRecord run_steps(const Config& config, const Experiment& experiment, Engine& engine,
                      const Session& session, Measurement& measurement, MetricsFile* metrics) {
  TrainRecord record;
  const bool root = session.mpi().rank() == 0;
  const std::size_t samples_of_step =
      experiment.data->samples_per_microbatch() * index(experiment.schedule.microbatches());
  const auto samples = static_cast<double>(samples_of_step);
  StepProgress progress(config.training.steps, experiment.data->sample_word());
  for (int step = 0; step < config.training.steps; ++step) {
    const StepResult result = engine.run_step(step, *experiment.data);
    std::optional<double> loss;
    if (!result.losses.empty()) {
      const double sum = std::accumulate(result.losses.begin(), result.losses.end(), 0.0);
      loss = record.losses.emplace_back(sum / static_cast<double>(result.losses.size()));
    }
    if (result.gradient_norm) record.gradient_norms.push_back(*result.gradient_norm);
    if (result.gradient_norm) record.learning_rates.push_back(result.learning_rate);
    if (result.clipped) record.clipped.push_back(step);
    record.step_seconds.push_back(result.seconds);
    if (result.skipped_for) record.skipped.push_back({step, *result.skipped_for});
    if (!root) continue;
    measurement.add(result);
    if (metrics != nullptr) {
      metrics->add(metrics_of(experiment.schedule, result, step, loss, samples_of_step),
                   experiment.data->sample_word());
    }
    progress.show(step, loss, result, samples / result.seconds);
  }
  std::vector<double> after_first(record.step_seconds.begin() + (record.step_seconds.size() > 1 ? 1 : 0),
                                  record.step_seconds.end());
  std::ranges::nth_element(after_first,
                           after_first.begin() + static_cast<std::ptrdiff_t>(after_first.size() / 2));
  record.samples_per_second = samples / after_first[after_first.size() / 2];
  return record;
}

void count_rank_bytes(const Config& config, const Engine& engine, const Session& session,
                      const TaskGraph& graph, TrainRecord& record) {
  record.rank_bytes_measured = session.mpi().sum_on_root(engine.bytes_sent_by_starpu());
  record.rank_bytes_predicted =
      bytes_between_ranks(graph, session.map()) * static_cast<std::uint64_t>(config.training.steps);
  record.rank_bytes_known = environment("STARPU_MPI_STATS").value_or("0") != "0";
}

// Collective; complete on rank 0. `compared`: on rank 0 only.
std::optional<GpuReport> report_gpus(const AgreedRun& run, const Engine& engine,
                                     const std::optional<plan::ComparedRun>& compared) {
  if (!run.config.runtime.uses_gpus()) return std::nullopt;
  const std::vector<GpuMemory> measured = engine.gpu_memory();
  GpuReport report{.memory = {}, .copies = find_gpu_copies(run.mpi)};
  if (run.mpi.rank() != 0) return report;
  const std::vector<int> gpu_of_worker = gpu_of_workers(measured, run.locations);
  const Experiment& e = run.experiment;
  const auto needs = memory_need(
      e.schedule, e.network, run.config.training.optimizer, compared->costs, compared->predicted.timeline,
      {gpu_of_worker, run.config.runtime.on_gpu_of(e.schedule.workers())}, step_rules(run.config));
  report.memory = gpu_use(measured, gpu_of_worker, needs);
  return report;
}

void write_outputs(const AgreedRun& run, const TrainOutputs& outputs, const TrainRecord& record,
                   const Measurement& measurement, const plan::ComparedRun& compared) {
  const Experiment& experiment = run.experiment;
  const plan::RecordedStep& predicted = compared.predicted;
  const plan::RecordedStep& measured = compared.measured;
  print(fmt::format("\n{} on {}, {}, policy {}: {:.0f} {}/s\n{}{}\n{}", experiment.schedule.name(),
                    counted_text(experiment.schedule.workers(), "worker"),
                    counted_text(run.mpi.ranks(), "rank"), record.policy, record.samples_per_second,
                    experiment.data->sample_word(), describe_partition(run.partition),
                    plan::describe_reordering(experiment.schedule.name(), experiment.reordering),
                    training_table(compared, measurement.workers(), record)));
  if (outputs.trace) {
    const std::array runs = {plan::TracedRun{"predicted", &experiment.schedule, &predicted.timeline},
                             plan::TracedRun{"measured", &measured.as_run, &measured.timeline}};
    write_file("--trace", *outputs.trace, plan::trace_json(runs).dump() + "\n");
  }
  if (outputs.timeline) {
    const std::array runs = {plan::explained_run("predicted", predicted),
                             plan::explained_run("measured", measured)};
    write_file("--timeline", *outputs.timeline, plan::timeline_svg(runs, {.unit = "s"}));
  }
  if (outputs.curves) {
    const std::array curves = {plan::Curve{"loss", record.losses},
                               plan::Curve{"gradient norm", record.gradient_norms},
                               plan::Curve{"learning rate", record.learning_rates}};
    write_file("--curves", *outputs.curves, plan::curves_svg(curves));
  }
  if (outputs.report) {
    const auto report =
        make_report(run.config, run.partition, experiment, run.locations, record, compared, measurement);
    write_file("--report", *outputs.report, plan::json_text(report));
  }
}

void run_and_report(const AgreedRun& run, const TrainOutputs& outputs, const Session& session,
                    Engine& engine) {
  const Experiment& experiment = run.experiment;
  Measurement measurement(experiment.schedule, costs_by_flops(experiment.network), experiment.emulated);
  const bool root = session.mpi().rank() == 0;
  std::optional<MetricsFile> metrics;
  if (root && outputs.metrics) metrics.emplace(*outputs.metrics);
  TrainRecord record =
      run_steps(run.config, experiment, engine, session, measurement, metrics ? &*metrics : nullptr);
  record.requested_policy = session.choice().name;
  record.policy = session.policy();
  count_rank_bytes(run.config, engine, session, engine.graph(), record);
  std::optional<plan::ComparedRun> compared;
  if (root) {
    compared = measurement.compared();
    compared->groups = run.config.schedule.groups;
  }
  record.gpus = report_gpus(run, engine, compared);
  require_finite_weights(run, engine);
  const auto trained = outputs.save_weights ? engine.parameters() : std::vector<std::vector<float>>{};
  if (!root) return;
  if (outputs.save_weights) model::save_weights(*outputs.save_weights, experiment.network, trained);
  write_outputs(run, outputs, record, measurement, *compared);
}

}  // namespace

int train(const std::function<Config()>& configure, const TrainOutputs& outputs) {
  return run_on_ranks([&] { return std::vector{configure()}; },
                      [&](const std::vector<AgreedRun>& runs) {
                        const AgreedRun& run = runs.front();
                        const auto policy = agree(run.mpi, [&] {
                          if (run.mpi.rank() == 0) check_outputs(outputs);
                          return configured_policy(run.config.runtime);
                        });
                        const Session session(run.mpi, run.map, run.share, policy, run.gpus);
                        or_abort(run.mpi, [&] {
                          Engine engine = make_engine(session, run);
                          or_abort(run.mpi, [&] { run_and_report(run, outputs, session, engine); });
                        });
                      });
}

}  // namespace starpipe::runtime
