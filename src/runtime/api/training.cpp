// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/training.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/environment.hpp"
#include "model/weights.hpp"
#include "runtime/api/weights_saving.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr const char* own_network = "own";

// Returns the throughput of the median step after the first.
double samples_per_second(const Experiment& experiment, std::vector<double> seconds) {
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  const auto median = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, median);
  const std::size_t samples =
      experiment.data->samples_per_microbatch() * index(experiment.schedule.whole_microbatches());
  return static_cast<double>(samples) / *median;
}

// Collective; complete on rank 0. `compared`: on rank 0 only.
std::optional<GpuReport> report_gpus(const AgreedRun& run, const Engine& engine,
                                     const std::optional<plan::ComparedRun>& compared) {
  if (!run.config.runtime.uses_gpus()) return std::nullopt;
  const std::vector<GpuMemory> measured = engine.gpu_memory();
  GpuReport report{.memory = {}, .copies = find_gpu_copies(run.mpi)};
  if (run.mpi.rank() != 0) return report;
  const std::vector<int> gpu_of_worker = gpu_of_workers(measured, run.locations);
  report.memory = gpu_use(measured, gpu_of_worker,
                          memory_need_of(run.config, run.experiment, compared->costs,
                                         compared->predicted.timeline, {.devices = gpu_of_worker}));
  return report;
}

Step step_of(const StepResult& result, int number) {
  Step step{.number = number,
            .loss = std::nullopt,
            .losses = result.losses,
            .gradient_norm = result.gradient_norm,
            .learning_rate = result.learning_rate,
            .clipped = result.clipped,
            .skipped = result.skipped_for.has_value(),
            .seconds = result.seconds,
            .submission = result.submission,
            .jobs = result.jobs,
            .workers = {}};
  if (!step.losses.empty()) {
    const double sum = std::accumulate(step.losses.begin(), step.losses.end(), 0.0);
    step.loss = sum / static_cast<double>(step.losses.size());
  }
  for (const WorkerRecord& worker : result.workers)
    step.workers.push_back({worker.received, worker.peak_stashes, worker.peak_stash_bytes});
  return step;
}

}  // namespace

Config with_parts(Config config, const TrainerParts& parts) {
  if (parts.network) {
    model::replace_network({.name = own_network,
                            .meaning = "The network of the program.",
                            .data = {},
                            .keys = {},
                            .units = parts.network});
    config.model.kind = own_network;
    config.model.options.clear();
    require_input(parts.data || config.evaluate.alone, "TrainerParts::data", "is needed with a network");
  }
  if (parts.data || parts.network) {
    require_input(parts.validation || !(config.evaluates() || config.evaluate.alone),
                  "TrainerParts::validation",
                  "is needed to evaluate a run with TrainerParts::data or network");
    const std::vector<std::string>& kinds = model::find_network(config.model.kind).data;
    config.data = {.kind = kinds.empty() ? model::DataConfig().kind : kinds.front()};
  }
  require_input(!config.runtime.device.empty(), "runtime.device", "is empty");
  if (parts.schedule) {
    require_input(!config.schedule.file, "schedule.file", "is given, and so is TrainerParts::schedule");
    config.schedule.name = parts.schedule->name();
    config.schedule.options.clear();
    config.schedule.workers = parts.schedule->workers();
    config.schedule.stages = parts.schedule->stages();
    config.training.microbatches = parts.schedule->whole_microbatches();
    config.schedule.slices = parts.schedule->slices();
  }
  require_input(!config.checkpoint.enabled() || !config.runtime.emulate, "checkpoint.folder",
                "does not apply with runtime.emulate");
  if (parts.validation && !config.evaluates()) config.evaluate.microbatches = config.training.microbatches;
  return config;
}

Training::Training(const Mpi& mpi, Config config, TrainerParts parts)
    : mpi_(mpi),
      agreed_(agree_on_runs(mpi, {agree(mpi, [&] { return with_parts(std::move(config), parts); })}, parts)),
      run_(agreed_->runs.front()),
      policy_(agree(mpi,
                    [&] {
                      PolicyChoice choice = configured_policy(run_.config);
                      check_shared_links(run_.config.runtime, choice, mpi.ranks());
                      if (!run_.config.evaluate.alone) check_homes(run_.experiment.schedule, choice);
                      return choice;
                    })),
      metrics_file_(std::move(parts.metrics)),
      measurement_(run_.experiment.schedule, run_.expected, run_.experiment.emulated) {}

Training::Training(const AgreedRun& run, PolicyChoice policy)
    : mpi_(run.mpi),
      run_(run),
      policy_(std::move(policy)),
      measurement_(run.experiment.schedule, run.expected, run.experiment.emulated) {}

Training::~Training() = default;

void Training::show(const std::string& words) const {
  if (agreed_) mpi_.show(words);
}

void Training::open_folder(bool resume) {
  folder_.emplace(run_, resume);
  if (resume) metrics_position_ = folder_->resumed() ? folder_->resumed()->metrics : MetricsPosition{};
  steps_done_ = record_.first_step = folder_->first_step();
}

bool Training::resume() {
  if (session_ || folder_) throw std::logic_error("resume() comes before the first step");
  require_input(run_.config.checkpoint.enabled(), "checkpoint.folder", "is needed to resume");
  open_folder(true);
  return folder_->resumed().has_value();
}

void Training::start() {
  if (session_) return;
  const bool trains = !run_.config.evaluate.alone;
  if (trains && agreed_ && run_.config.checkpoint.enabled() && !folder_) open_folder(false);
  agree(mpi_, [&] {
    if (is_root() && metrics_file_) MetricsFile::check(*metrics_file_, metrics_position_);
    return true;
  });
  show("starts StarPU");
  session_.emplace(mpi_, run_.map, run_.share, policy_, run_.gpus,
                   trains && run_.experiment.schedule.copies());
  const bool resumed = folder_ && folder_->resumed();
  model::StartValues start_values = run_.start;
  if (start_values && resumed)
    start_values = [](const model::SetParameter&, std::span<float>) {};  // `restore` writes all
  if (!resumed) show(fmt::format("start values of {} parameters", run_.experiment.network.parameter_count()));
  std::string problem;  // of the start values; on every rank
  or_abort(mpi_, [&] {
    const Experiment& e = run_.experiment;
    try {
      if (trains) {
        // NOLINTNEXTLINE(modernize-make-unique): it cannot move
        engine_.reset(new Engine(make_engine(*session_, run_, start_values)));
      } else {
        evaluator_ = std::make_unique<Evaluator>(*session_, e.schedule, e.network, run_.start,
                                                 run_.config.runtime, e.rules.evaluated);
      }
    } catch (const InputError& error) {
      problem = error.what();
      return;
    }
    if (resumed) show("reads the checkpoint");
    if (folder_) folder_->restore(*engine_);
    if (is_root() && metrics_file_) {
      metrics_.emplace(*metrics_file_, metrics_position_);
      say_metrics_news();
    }
  });
  if (problem.empty()) return;
  session_.reset();
  throw InputError(problem);
}

Step Training::train_step(bool checkpoints) {
  const int number = steps_done_;
  measurement_.begin_step();
  StepResult result = engine_->run_step(number, *run_.experiment.data);
  ++steps_done_;
  Step step = step_of(result, number);
  if (step.loss) record_.losses.push_back(*step.loss);
  if (step.gradient_norm) record_.gradient_norms.push_back(*step.gradient_norm);
  if (step.gradient_norm) record_.learning_rates.push_back(step.learning_rate);
  if (step.clipped) record_.clipped.push_back(number);
  record_.step_seconds.push_back(step.seconds);
  if (result.skipped_for) record_.skipped.push_back({number, *result.skipped_for});
  // The checkpoint comes last: all that the step has left must be in it, or before it in the metrics. The
  // evaluation after the step comes later, and a run that continues at the checkpoint does it first.
  is_due_ = checkpoints && checkpoints_->is_due(steps_done_);
  std::optional<double> pause;
  if (is_due_) pause = checkpoints_->copy(steps_done_);
  if (pause) record_.checkpoints->pauses.push_back({steps_done_, *pause});
  if (metrics_)
    metrics_->add(run_.experiment.schedule, result, number, step.loss, *run_.experiment.data, pause);
  say_metrics_news();
  if (is_root()) measurement_.end_step(std::move(result));
  return step;
}

void Training::require_values(const char* function) const {
  require_input(!run_.config.runtime.emulate, "runtime.emulate",
                fmt::format("{}() does not apply: emulated jobs compute no values", function));
}

void Training::require_training(const char* function) const {
  if (run_.config.evaluate.alone)
    throw std::logic_error(fmt::format("{}(): the run only evaluates", function));
  if (has_failed_) throw std::logic_error(fmt::format("{}(): an earlier step has failed", function));
}

Step Training::step() {
  require_training("step");
  start();
  if (steps_done_ >= run_.config.training.steps)
    throw std::logic_error("step(): all steps of training.steps are done");
  Step step;
  try {
    or_abort(mpi_, [&] { step = train_step(false); });
  } catch (const RunFailure&) {
    has_failed_ = true;
    throw;
  }
  return step;
}

Checkpointing& Training::checkpoints() {
  if (!checkpoints_) checkpoints_.emplace(run_, *folder_, *engine_);
  if (!record_.checkpoints) record_.checkpoints.emplace();
  return *checkpoints_;
}

void Training::run_steps() {
  const int steps = run_.config.training.steps;
  evaluate_if_due();
  if (folder_ && accepts_signals_) checkpoints().accept_signals();
  show(fmt::format("step {}/{}", steps_done_ + 1, steps));
  while (steps_done_ < steps) {
    Step step;
    or_abort(mpi_, [&] { step = train_step(folder_.has_value()); });
    if (on_step) on_step(step);
    or_abort(mpi_, [&] {
      if (is_due_) checkpoints_->begin_writing(metrics_ ? &*metrics_ : nullptr);
    });
    if (is_due_ && checkpoints_->is_stopping() && steps_done_ < steps) break;
    if (steps_done_ < steps) evaluate_if_due();
  }
}

bool Training::run() {
  require_training("run");
  start();
  const int steps = run_.config.training.steps;
  try {
    if (steps_done_ < steps) {
      if (folder_) checkpoints();
      run_steps();
      or_abort(mpi_, [&] {
        if (checkpoints_) checkpoints_->finish(*record_.checkpoints);
      });
    }
    or_abort(mpi_, [&] { require_finite_weights(run_, *engine_); });
  } catch (const RunFailure&) {
    has_failed_ = true;
    // A checkpoint of an earlier step may be half written.
    CheckpointSummary ignored;
    if (checkpoints_) checkpoints_->finish(ignored);
    throw;
  }
  if (steps_done_ < steps) return false;
  if (on_trained) on_trained();
  evaluate_if_due();
  return true;
}

void Training::say_metrics_news() {
  const std::string news = metrics_ ? metrics_->take_news() : "";
  if (!news.empty()) mpi_.say(news);
}

std::string Training::metrics_problem() const {
  return mpi_.first_problem(metrics_ ? metrics_->problem() : "");
}

void Training::evaluate_if_due() {
  const std::optional<int>& every = run_.config.evaluate.every;
  const bool is_due =
      steps_done_ == 0 || steps_done_ == run_.config.training.steps || (every && steps_done_ % *every == 0);
  if (!is_due || !run_.experiment.validation) return;
  const starpipe::Evaluation done = evaluate();
  or_abort(mpi_, [&] {
    record_.evaluations.push_back({.step = done.steps,
                                   .loss = done.loss,
                                   .microbatches = static_cast<int>(done.losses.size()),
                                   .seconds = done.seconds});
    if (metrics_) metrics_->add_evaluation(done.steps, done.loss);
    say_metrics_news();
  });
  if (on_evaluation) on_evaluation(done);
}

starpipe::Evaluation Training::evaluate() {
  if (has_failed_) throw std::logic_error("evaluate(): an earlier step has failed");
  require_values("evaluate");
  require_input(run_.experiment.validation != nullptr, "data.validation", "there are no data to evaluate");
  start();
  EvaluationResult result;
  show("evaluates");
  or_abort(mpi_, [&] {
    if (engine_) {
      result = engine_->evaluate(steps_done_, *run_.experiment.validation);
      return;
    }
    result = evaluator_->run(*run_.experiment.validation);
    if (run_.config.training.nonfinite == NonFinitePolicy::stop) require_finite_losses(result, std::nullopt);
  });
  return {.steps = steps_done_,
          .loss = result.loss,
          .losses = std::move(result.losses),
          .seconds = result.seconds};
}

void Training::save() {
  require_input(run_.config.checkpoint.enabled(), "checkpoint.folder", "is needed to save");
  if (run_.config.evaluate.alone || has_failed_) throw std::logic_error("save(): there is nothing to save");
  start();
  std::string problem;
  or_abort(mpi_, [&] {
    Checkpointing& writer = checkpoints();
    record_.checkpoints->pauses.push_back({steps_done_, writer.copy(steps_done_)});
    writer.begin_writing(metrics_ ? &*metrics_ : nullptr);
    writer.finish(*record_.checkpoints);
    problem = record_.checkpoints->last_problem;
  });
  if (!problem.empty())
    throw RunFailure(fmt::format("the checkpoint of step {} could not be written: {}", steps_done_, problem));
}

std::vector<std::vector<float>> Training::weights() {
  require_training("weights");
  require_values("weights");
  start();
  std::vector<std::vector<float>> trained;
  show("collects the weights");
  or_abort(mpi_, [&] { trained = engine_->parameters(); });
  if (!is_root()) trained.clear();
  return trained;
}

std::vector<std::vector<float>> Training::gradients() {
  require_training("gradients");
  require_values("gradients");
  if (record_.step_seconds.empty()) throw std::logic_error("gradients(): no step is done");
  std::vector<std::vector<float>> found;
  or_abort(mpi_, [&] { found = engine_->gradients(); });
  if (!is_root()) found.clear();
  return found;
}

void Training::save_weights(const std::filesystem::path& file, const model::SaveFormat& format) {
  require_training("save_weights");
  require_values("save_weights");
  start();
  show("saves the weights");
  std::exception_ptr failure;  // that all ranks know of
  or_abort(mpi_, [&] {
    require_finite_weights(run_, *engine_);
    failure = runtime::save_weights(mpi_, *engine_, run_.experiment.network, file, format);
  });
  if (failure) std::rethrow_exception(failure);
}

Training::Result Training::result() {
  if (record_.step_seconds.empty()) throw std::logic_error("report(): no step is done");
  Result result{.record = record_, .compared = std::nullopt};
  or_abort(mpi_, [&] {
    TrainRecord& record = result.record;
    const Experiment& experiment = run_.experiment;
    record.samples_per_second = samples_per_second(experiment, record.step_seconds);
    record.is_complete = steps_done_ == run_.config.training.steps;
    record.requested_policy = session_->choice().name;
    record.policy = session_->policy();
    record.rank_bytes_measured = mpi_.combine(engine_->bytes_sent_by_starpu(), Combine::sum);
    record.rank_bytes_predicted =
        bytes_between_ranks(engine_->graph(), run_.map) * record.step_seconds.size();
    if (const TaskGraph* evaluation = engine_->evaluation_graph())
      record.rank_bytes_predicted += bytes_between_ranks(*evaluation, run_.map) * record.evaluations.size();
    for (const MainMemory& of_rank : run_.memory) record.memory_predicted.push_back(of_rank.total());
    const std::uint64_t resident = memory_of_process("VmHWM");
    record.memory_measured = gather_on_root<std::uint64_t>(mpi_, std::span(&resident, 1));
    record.rank_bytes_known = environment("STARPU_MPI_STATS").value_or("0") != "0";
    if (is_root()) {
      result.compared = measurement_.compared();
      result.compared->groups = run_.config.schedule.groups;
      result.compared->first_step += record.first_step;
      result.compared->median_step += record.first_step;
    }
    record.gpus = report_gpus(run_, *engine_, result.compared);
  });
  return result;
}

nlohmann::ordered_json training_report(const Training& training, const Training::Result& result) {
  const AgreedRun& run = training.agreed();
  return make_report(run.config, run.partition, run.experiment, run.locations, result.record,
                     result.compared.value(), training.measurement());
}

}  // namespace starpipe::runtime
