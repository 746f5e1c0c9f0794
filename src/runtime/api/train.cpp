// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/api/train.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "model/weights.hpp"
#include "plan/drawing/page.hpp"
#include "plan/drawing/timeline_svg.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/trace_json.hpp"
#include "runtime/api/checkpointing.hpp"
#include "runtime/api/evaluate.hpp"
#include "runtime/api/resume.hpp"
#include "runtime/api/run_on_ranks.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/metrics.hpp"
#include "runtime/report/report.hpp"
#include "runtime/session/session.hpp"
#include "runtime/setup/expected_costs.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "runtime/setup/profile.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Shows each step on a terminal, and about twenty steps of a run in a log.
class StepProgress {
 public:
  StepProgress(int first, int steps, std::string sample_word)
      : first_(first), steps_(steps), sample_word_(std::move(sample_word)) {}

  /// A log shows only some steps, and every step whose update was skipped.
  void show(int step, std::optional<double> loss, const StepResult& result, double samples_per_second) {
    const bool skipped = result.skipped_for.has_value();
    const std::string norm = result.gradient_norm
                                 ? fmt::format("  norm {:#.4g}{}", std::abs(*result.gradient_norm),
                                               result.clipped ? " clipped" : "")
                                 : "";  // abs: a NaN may have a sign
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

  /// A line between two steps, or after the last one.
  void keep(const std::string& text, bool last) const {
    if (last && !line_.on_terminal() && launcher_rank()) {
      fmt::print("{}\n", text);  // after the last step's line
    } else {
      line_.keep(text);
    }
  }

 private:
  // The first step warms up, so the others are taken to last as long as those after it. Not for short runs,
  // whose end one sees.
  [[nodiscard]] std::string time_left(int step) {
    const auto now = std::chrono::steady_clock::now();
    if (step == first_) {
      after_first_ = now;
      return "";
    }
    const double seconds =
        std::chrono::duration<double>(now - after_first_).count() / (step - first_) * (steps_ - step - 1);
    if (seconds < 1) return "";
    const auto whole = static_cast<std::int64_t>(seconds);
    return whole < 3600 ? fmt::format("  {}:{:02} left", whole / 60, whole % 60)
                        : fmt::format("  {}:{:02}:{:02} left", whole / 3600, whole / 60 % 60, whole % 60);
  }

  int first_;
  int steps_;
  std::string sample_word_;
  ProgressLine line_;
  std::chrono::steady_clock::time_point after_first_;  // when the first step had ended
};

// Where the file of metrics goes on; nothing in a run that does not resume. `folder`: null without
// checkpoints.
std::optional<MetricsPosition> metrics_position(const CheckpointFolder* folder, bool resume) {
  if (!resume || folder == nullptr) return std::nullopt;
  MetricsPosition position{.step = folder->first_step()};
  if (const auto& resumed = folder->resumed()) {
    position.bytes = resumed->metrics_bytes;
    position.hash = resumed->metrics_hash;
  }
  return position;
}

void check_outputs(const TrainOutputs& outputs, const std::optional<MetricsPosition>& position) {
  if (outputs.report) require_writable("--report", *outputs.report);
  if (outputs.html) require_writable("--html", *outputs.html);
  if (outputs.trace) require_writable("--trace", *outputs.trace);
  if (outputs.timeline) require_writable("--timeline", *outputs.timeline);
  if (outputs.metrics) MetricsFile::check(*outputs.metrics, position);
  if (outputs.save_weights) require_writable("--save-weights", *outputs.save_weights);
}

// A run from its first step on, and where its parts are.
struct Training {
  const AgreedRun& run;
  const Session& session;
  Engine& engine;
  Measurement& measurement;
  MetricsFile* metrics = nullptr;        // on rank 0, if there is one
  Checkpointing* checkpoints = nullptr;  // null without checkpoints
  int first_step = 0;                    // from 0
};

// What rank 0 keeps of a step, and shows of it.
void record_step(const Training& training, StepResult result, int step, std::optional<double> loss,
                 std::optional<double> pause, StepProgress& progress) {
  const Experiment& experiment = training.run.experiment;
  const std::size_t samples =
      experiment.data->samples_per_microbatch() * index(experiment.schedule.microbatches());
  if (training.metrics != nullptr) {
    StepMetrics metrics = metrics_of(experiment.schedule, result, step, loss, samples);
    metrics.checkpoint_seconds = pause;
    training.metrics->add(metrics, experiment.data->sample_word());
  }
  progress.show(step, loss, result, static_cast<double>(samples) / result.seconds);
  training.measurement.end_step(std::move(result));
}

// The evaluation after `steps` steps, if one is due.
void evaluate_after(const Training& training, int steps, TrainRecord& record, const StepProgress& progress) {
  const Experiment& experiment = training.run.experiment;
  if (!evaluation_is_due(training.run.config, experiment, steps)) return;
  const EvaluationRecord& done =
      record.evaluations.emplace_back(evaluate_between_steps(training.engine, experiment, steps));
  if (training.session.mpi().rank() != 0) return;
  if (training.metrics != nullptr) training.metrics->add_evaluation(steps, done.loss);
  progress.keep(evaluation_text(done.loss, done.microbatches), steps == training.run.config.training.steps);
}

// Runs the steps. The record is complete on rank 0.
TrainRecord run_steps(const Training& training) {
  TrainRecord record;
  record.first_step = training.first_step;
  const Experiment& experiment = training.run.experiment;
  const int steps = training.run.config.training.steps;
  if (training.checkpoints != nullptr) record.checkpoints.emplace();
  StepProgress progress(training.first_step, steps, experiment.data->sample_word());
  evaluate_after(training, training.first_step, record, progress);
  if (training.checkpoints != nullptr) training.checkpoints->accept_signals();
  for (int step = training.first_step; step < steps; ++step) {
    training.measurement.begin_step();
    StepResult result = training.engine.run_step(step, *experiment.data);
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
    // The checkpoint comes last: all that the step has left must be in it, or before it in the metrics. The
    // evaluation after the step comes later, and a run that goes on at the checkpoint does it first.
    const bool due = training.checkpoints != nullptr && training.checkpoints->is_due(step + 1);
    std::optional<double> pause;
    if (due) pause = training.checkpoints->copy(step + 1);
    if (pause) record.checkpoints->pauses.push_back({step + 1, *pause});
    if (training.session.mpi().rank() == 0)
      record_step(training, std::move(result), step, loss, pause, progress);
    if (due) training.checkpoints->begin_writing(training.metrics);
    if (due && training.checkpoints->is_stopping() && step + 1 < steps) break;
    evaluate_after(training, step + 1, record, progress);
  }
  std::vector<double> after_first(record.step_seconds.begin() + (record.step_seconds.size() > 1 ? 1 : 0),
                                  record.step_seconds.end());
  std::ranges::nth_element(after_first,
                           after_first.begin() + static_cast<std::ptrdiff_t>(after_first.size() / 2));
  record.samples_per_second = static_cast<double>(experiment.data->samples_per_microbatch() *
                                                  index(experiment.schedule.microbatches())) /
                              after_first[after_first.size() / 2];
  return record;
}

// When the steps fail, on all ranks, a checkpoint of an earlier step may be half written.
TrainRecord run_steps_and_checkpoints(const Training& training) {
  try {
    return run_steps(training);
  } catch (const RunFailure&) {
    CheckpointSummary ignored;
    if (training.checkpoints != nullptr) training.checkpoints->finish(ignored);
    throw;
  }
}

void count_rank_bytes(const Engine& engine, const Session& session, const TaskGraph& graph,
                      TrainRecord& record) {
  record.rank_bytes_measured = session.mpi().sum_on_root(engine.bytes_sent_by_starpu());
  record.rank_bytes_predicted = bytes_between_ranks(graph, session.map()) * record.step_seconds.size();
  if (const TaskGraph* evaluation = engine.evaluation_graph()) {
    record.rank_bytes_predicted +=
        bytes_between_ranks(*evaluation, session.map()) * record.evaluations.size();
  }
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
  const auto needs = memory_need(e.schedule, e.network, run.config.training.optimizer, compared->costs,
                                 compared->predicted.timeline,
                                 {gpu_of_worker, run.config.runtime.on_gpu_of(e.schedule.workers())},
                                 step_rules(run.config, e.schedule.microbatches()));
  report.memory = gpu_use(measured, gpu_of_worker, needs);
  return report;
}

/// Runs several pieces of work, also when an earlier one fails: a full disk or a closed pipe must not cost
/// the other results of a long run.
class EachInTurn {
 public:
  void run(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      if (!first_) first_ = std::current_exception();
    }
  }
  /// Throws the first exception, if there was one.
  void finish() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

void write_report(const AgreedRun& run, const TrainOutputs& outputs, const TrainRecord& record,
                  const Measurement& measurement, const plan::ComparedRun& compared) {
  const Experiment& experiment = run.experiment;
  auto report =
      make_report(run.config, run.partition, experiment, run.locations, record, compared, measurement);
  EachInTurn files;
  files.run([&] {
    if (outputs.report) write_file("--report", *outputs.report, plan::json_text(report));
  });
  files.run([&] {
    if (!outputs.html) return;
    report = plan::report_for_page(std::move(report));
    const std::array runs = {plan::compared_page_run(experiment.schedule.name(), compared, report)};
    write_file("--html", *outputs.html, plan::report_page(runs));
  });
  files.finish();
}

// Files first: standard output may be a pipe that nobody reads any more.
void write_outputs(const AgreedRun& run, const TrainOutputs& outputs, const TrainRecord& record,
                   const Measurement& measurement, const plan::ComparedRun& compared) {
  const Experiment& experiment = run.experiment;
  const plan::RecordedStep& predicted = compared.predicted;
  const plan::RecordedStep& measured = compared.measured;
  EachInTurn files;
  files.run([&] {
    if (outputs.report || outputs.html) write_report(run, outputs, record, measurement, compared);
  });
  files.run([&] {
    if (!outputs.trace) return;
    const std::array runs = {plan::TracedRun{"predicted", &experiment.schedule, &predicted.timeline},
                             plan::TracedRun{"measured", &measured.as_run, &measured.timeline}};
    write_file("--trace", *outputs.trace, plan::trace_json(runs).dump() + "\n");
  });
  files.run([&] {
    if (!outputs.timeline) return;
    const std::array runs = {plan::explained_run("predicted", predicted),
                             plan::explained_run("measured", measured)};
    write_file("--timeline", *outputs.timeline, plan::timeline_svg(runs, {.unit = "s"}));
  });
  files.run([&] {
    print(fmt::format("\n{} on {}, {}, policy {}: {:.0f} {}/s\n{}{}\n{}", experiment.schedule.name(),
                      counted_text(experiment.schedule.workers(), "worker"),
                      counted_text(run.mpi.ranks(), "rank"), record.policy, record.samples_per_second,
                      experiment.data->sample_word(), describe_partition(run.partition),
                      plan::describe_reordering(experiment.schedule.name(), experiment.reordering),
                      training_table(compared, measurement.workers(), record)));
  });
  files.finish();
}

void save_weights(const AgreedRun& run, const TrainOutputs& outputs, const Engine& engine) {
  if (!outputs.save_weights) return;
  const std::vector<std::vector<float>> trained = engine.parameters();
  if (run.mpi.rank() == 0) model::save_weights(*outputs.save_weights, run.experiment.network, trained);
}

// A run that has been resumed after its last step: only the weights may still be missing.
void finish_complete_run(const AgreedRun& run, const TrainOutputs& outputs, const Engine& engine) {
  require_finite_weights(run, engine);
  save_weights(run, outputs, engine);
  if (run.mpi.rank() != 0) return;
  const bool measures = outputs.report || outputs.html || outputs.trace || outputs.timeline;
  print(fmt::format("All {} steps are done; nothing is left to train{}.\n", run.config.training.steps,
                    measures ? ", and there is no step to report" : ""));
}

// The end of a run that a signal has asked to stop.
RunFailure stopped(const AgreedRun& run, int steps_done) {
  return RunFailure(fmt::format("ended by SIGTERM after step {} of {}; --resume goes on from its checkpoint",
                                steps_done, run.config.training.steps),
                    status_of_stopped_run);
}

// All steps and what follows them.
void run_and_report(const AgreedRun& run, const TrainOutputs& outputs, const Session& session, Engine& engine,
                    CheckpointFolder* folder, const std::optional<MetricsPosition>& position) {
  const Experiment& experiment = run.experiment;
  const bool root = session.mpi().rank() == 0;
  const int first_step = folder != nullptr ? folder->first_step() : 0;
  if (folder != nullptr) folder->restore(engine);
  std::optional<MetricsFile> metrics;
  if (root && outputs.metrics) metrics.emplace(*outputs.metrics, position);
  Measurement measurement(experiment.schedule, costs_by_flops(experiment.network), experiment.emulated);
  Training training = {.run = run,
                       .session = session,
                       .engine = engine,
                       .measurement = measurement,
                       .metrics = metrics ? &*metrics : nullptr,
                       .first_step = first_step};
  if (first_step == run.config.training.steps) {
    TrainRecord evaluated;
    evaluate_after(training, first_step, evaluated,
                   StepProgress(first_step, first_step, experiment.data->sample_word()));
    return finish_complete_run(run, outputs, engine);
  }
  std::optional<Checkpointing> checkpoints;
  if (folder != nullptr) checkpoints.emplace(run, *folder, engine);
  training.checkpoints = checkpoints ? &*checkpoints : nullptr;
  TrainRecord record = run_steps_and_checkpoints(training);
  record.requested_policy = session.choice().name;
  record.policy = session.policy();
  count_rank_bytes(engine, session, engine.graph(), record);
  std::optional<plan::ComparedRun> compared;
  if (root) {
    compared = measurement.compared();
    compared->groups = run.config.schedule.groups;
    compared->first_step += first_step;
    compared->median_step += first_step;
  }
  record.gpus = report_gpus(run, engine, compared);
  if (checkpoints) checkpoints->finish(*record.checkpoints);
  require_finite_weights(run, engine);
  const int steps_done = first_step + static_cast<int>(record.step_seconds.size());
  record.is_complete = steps_done == run.config.training.steps;
  EachInTurn results;
  results.run([&] {
    if (record.is_complete) save_weights(run, outputs, engine);
  });
  results.run([&] {
    if (root) write_outputs(run, outputs, record, measurement, *compared);
  });
  results.finish();
  if (record.checkpoints && !record.checkpoints->last_problem.empty())
    throw RunFailure(fmt::format("the last checkpoint, of step {}, could not be written", steps_done));
  if (!record.is_complete) throw stopped(run, steps_done);
}

RankRequest training_request(const TrainOutputs& outputs, bool resume) {
  RankRequest request("train");
  request.add_flag("--resume", resume);
  request.add("--report", outputs.report);
  request.add("--html", outputs.html);
  request.add("--trace", outputs.trace);
  request.add("--timeline", outputs.timeline);
  request.add("--metrics", outputs.metrics);
  request.add("--save-weights", outputs.save_weights);
  return request;
}

}  // namespace

int train(const std::function<Config()>& configure, const TrainOutputs& outputs, bool resume) {
  return run_on_ranks(
      training_request(outputs, resume), [&] { return std::vector{configure()}; },
      [&](const std::vector<AgreedRun>& runs) {
        const AgreedRun& run = runs.front();
        std::optional<CheckpointFolder> folder;
        if (run.config.checkpoint.enabled()) folder.emplace(run, resume);
        CheckpointFolder* const checkpoints = folder ? &*folder : nullptr;
        const auto position = metrics_position(checkpoints, resume);
        const auto policy = agree(run.mpi, [&] {
          if (outputs.timeline) plan::require_drawable(2 * run.experiment.schedule.job_count());
          if (run.mpi.rank() == 0) check_outputs(outputs, position);
          PolicyChoice choice = configured_policy(run.config);
          check_shared_links(run.config.runtime, choice, run.mpi.ranks());
          return choice;
        });
        const Session session(run.mpi, run.map, run.share, policy, run.gpus);
        or_abort(run.mpi, [&] {
          Engine engine = make_engine(session, run);
          or_abort(run.mpi, [&] { run_and_report(run, outputs, session, engine, checkpoints, position); });
        });
      });
}

}  // namespace starpipe::runtime
