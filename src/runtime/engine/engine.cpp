// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "base/environment.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/clock.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {
namespace {

// Returns the message of a run that stops because of a value that is not finite.
std::string origin_text(int step, const NonFiniteOrigin& origin, const plan::Schedule& schedule) {
  constexpr std::string_view key = "(training.nonfinite: stop)";
  if (!origin.pass) {
    return fmt::format("step {}: the gradient of {} has infinity or NaN {}", step + 1, origin.parameter, key);
  }
  const plan::Job job = schedule.job(*origin.pass);
  return fmt::format("step {}, micro-batch {}, stage {}, pass {}: the first result with infinity or NaN {}",
                     step + 1, job.microbatch, job.stage, plan::to_string(job.pass), key);
}

// Names an evaluation in messages. `steps`: trained before; nullopt in a run that does not train.
std::string place_text(std::optional<int> steps) {
  if (!steps) return "the evaluation";
  return part_of_run({.step = *steps - 1, .evaluates = 1});
}

// Collective. Throws InputError when some rank could not make its start values.
const Watched& started(const Session& session, StepRun& run) {
  const std::string problem = session.mpi().first_problem(run.data().problem());
  if (!problem.empty()) throw InputError(problem);
  return run.watched();
}

}  // namespace

Engine::Engine(const Session& session, const plan::Schedule& schedule, const model::Network& network,
               const model::OptimizerConfig& optimizer, const model::StartValues& start,
               const RuntimeConfig& config, const plan::Costs* emulated, NonFinitePolicy nonfinite,
               int evaluated)
    : session_(session),
      schedule_(schedule),
      network_(network),
      optimizer_(optimizer),
      config_(config),
      nonfinite_(nonfinite),
      computes_(emulated == nullptr),
      run_(session,
           TaskGraph(schedule, network, optimizer,
                     {.has_norm = computes_ || on_simgrid,
                      .can_skip = computes_ && nonfinite == NonFinitePolicy::skip,
                      .evaluated = evaluated}),
           {.schedule = schedule,
            .network = network,
            .window = config.window,
            .stash_folder = config.stash_folder,
            .start = start,
            .optimizer = &optimizer_,
            .emulated = emulated,
            .finds_nonfinite = computes_ && nonfinite != NonFinitePolicy::proceed}),
      watch_(session, config.timeout, started(session, run_)) {}

void Engine::complete_copies(StepResult& result) const {
  std::vector<plan::Span> spans(schedule_.id_count());
  for (const JobRecord& job : result.jobs) spans[job.job] = {job.start, job.end};
  for (JobRecord& job : result.jobs) {
    if (!plan::is_copy(schedule_.job(job.job).pass) || !schedule_.peer(job.job)) continue;
    double possible = -std::numeric_limits<double>::infinity();
    schedule_.for_each_pred(job.job,
                            [&](plan::JobId before) { possible = std::max(possible, spans[before].end); });
    job.start = std::min(job.start, possible);
    job.ready = std::min(job.ready, job.start);
    job.submitted = std::min(job.submitted, job.ready);
    spans[job.job].start = job.start;
  }
  const plan::Timeline timeline =
      plan::evaluate(schedule_, {.sizes = network_.sizes()}, std::move(spans), schedule_.rows());
  for (std::size_t w = 0; w < result.workers.size(); ++w) {
    result.workers[w].peak_stashes = timeline.peak_stashes[w];
    result.workers[w].peak_stash_bytes = timeline.peak_stash_bytes[w];
  }
}

StepResult Engine::run_step(int step, const model::Dataset& data) {
  StepResult result;
  result.learning_rate = model::learning_rate(optimizer_.schedule, optimizer_.learning_rate, step);
  run_.runner().begin_step(updates_, result.learning_rate);
  StepRun::Outcome outcome =
      run_.run(fmt::format("step {}", step + 1), step, step, computes_ ? &data : nullptr);
  result.seconds = outcome.seconds;
  result.submission = outcome.submission;
  result.prefetch = run_.sends_ahead();
  const Gathering& gathering = run_.gathering();
  if (computes_) result.losses = gathering.losses();
  result.jobs = gathering.jobs(std::move(outcome.jobs));
  result.workers = gathering.workers(run_.meter().workers());
  const bool counts_late = on_simgrid && schedule_.copies();
  if ((schedule_.has_peers() || counts_late) && !result.jobs.empty()) complete_copies(result);
  const auto gradient = computes_ ? gathering.gradient_norm() : std::nullopt;
  if (gradient) result.gradient_norm = gradient->norm;
  result.skipped_for = first_nonfinite(gradient);
  run_.leave(step);
  if (result.skipped_for && nonfinite_ == NonFinitePolicy::stop)
    throw RunFailure(origin_text(step, *result.skipped_for, schedule_));
  if (result.skipped_for) return result;
  ++updates_;
  result.clipped = gradient && model::clip_scale(optimizer_.clip, gradient->norm) < 1;
  return result;
}

EvaluationResult Engine::evaluate(int steps, const model::Dataset& data) {
  if (!evaluator_) {
    evaluator_ = std::make_unique<Evaluator>(session_, schedule_, network_, run_.data(), config_,
                                             graph().rules().evaluated, watch_);
  }
  EvaluationResult result;
  try {
    result = evaluator_->run(data, steps);
  } catch (...) {
    watch_.look_at(run_.watched());
    throw;
  }
  watch_.look_at(run_.watched());
  if (nonfinite_ == NonFinitePolicy::stop) require_finite_losses(result, steps);
  return result;
}

std::optional<NonFiniteOrigin> Engine::first_nonfinite(const std::optional<GradientNorm>& gradient) const {
  if (nonfinite_ == NonFinitePolicy::proceed) return std::nullopt;
  if (const auto pass = run_.finite().first(session_.mpi())) return NonFiniteOrigin{.pass = pass};
  if (!gradient || gradient->first_nonfinite.empty()) return std::nullopt;
  return NonFiniteOrigin{.parameter = gradient->first_nonfinite};
}

std::optional<int> Engine::first_nonfinite_stage() const {
  if (!computes_ || nonfinite_ == NonFinitePolicy::proceed) return std::nullopt;
  return run_.gathering().first_nonfinite_stage();
}

std::vector<GpuMemory> Engine::gpu_memory() const {
  return gather_on_root<GpuMemory>(session_.mpi(), session_.gpu_memory());
}

std::uint64_t Engine::bytes_sent_by_starpu() const {
  std::vector<std::size_t> sent(index(session_.mpi().ranks()), 0);
  starpu_mpi_comm_stats_retrieve(sent.data());
  return std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
}

void require_finite_losses(const EvaluationResult& result, std::optional<int> steps) {
  const auto bad = std::ranges::find_if_not(result.losses, [](float loss) { return std::isfinite(loss); });
  if (bad == result.losses.end()) return;
  throw RunFailure(fmt::format("{}, micro-batch {}: the loss is infinity or NaN (training.nonfinite: stop)",
                               place_text(steps), bad - result.losses.begin()));
}

Evaluator::Evaluator(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                     const StepData& training, const RuntimeConfig& config, int microbatches, RunWatch& watch)
    : schedule_(plan::forward_passes(schedule, microbatches * schedule.slices())),
      run_(session, TaskGraph::evaluation(schedule, schedule_, network),
           {.schedule = schedule_, .network = network, .window = config.window, .training = &training}),
      watch_(watch) {}

Evaluator::Evaluator(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                     const model::StartValues& weights, const RuntimeConfig& config, int microbatches)
    : schedule_(plan::forward_passes(schedule, microbatches * schedule.slices())),
      run_(session, TaskGraph::evaluation(schedule, schedule_, network),
           {.schedule = schedule_, .network = network, .window = config.window, .start = weights}),
      watch_(own_watch_.emplace(session, config.timeout, started(session, run_))) {}

EvaluationResult Evaluator::run(const model::Dataset& data, std::optional<int> steps) {
  const int last_step = steps.value_or(0) - 1;  // counted from 0; -1: none came before
  const double start = clock_seconds();
  watch_.look_at(run_.watched());
  run_.run(place_text(steps), last_step, 0, &data);
  EvaluationResult result{.losses = {}, .loss = 0, .seconds = clock_seconds() - start};
  result.losses = run_.gathering().losses();
  // A micro-batch weighs as many samples as it counts. Equal weights are 1, so that the mean is exact.
  std::vector<std::uint64_t> counts = data.evaluated(schedule_.whole_microbatches()).counts;
  counts.resize(result.losses.size());
  const auto largest = static_cast<double>(std::ranges::max(counts));
  double weights = 0;
  for (std::size_t m = 0; m < counts.size(); ++m) {
    const double weight = static_cast<double>(counts[m]) / largest;
    result.loss += weight * static_cast<double>(result.losses[m]);
    weights += weight;
  }
  result.loss /= weights;
  run_.leave(last_step);
  return result;
}

}  // namespace starpipe::runtime
