// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/engine.hpp"

#include <algorithm>
#include <numeric>
#include <string>

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

// Returns why the run stops.
std::string origin_text(int step, const NonFiniteOrigin& origin, const plan::Schedule& schedule) {
  constexpr std::string_view key = "(training.nonfinite: stop)";
  if (!origin.pass) {
    return fmt::format("step {}: the gradient of {}, added up over the workers, has infinity or NaN {}",
                       step + 1, origin.parameter, key);
  }
  const plan::Job job = schedule.job(*origin.pass);
  return fmt::format("step {}, micro-batch {}, stage {}, pass {}: the first result with infinity or NaN {}",
                     step + 1, job.microbatch, job.stage, plan::to_string(job.pass), key);
}

}  // namespace

Engine::Engine(const Session& session, const plan::Schedule& schedule, const model::Network& network,
               const model::OptimizerConfig& optimizer, const std::vector<std::vector<float>>& parameters,
               const RuntimeConfig& config, const plan::Costs* emulated, NonFinitePolicy nonfinite,
               int evaluated)
    : session_(session),
      schedule_(schedule),
      network_(network),
      optimizer_(optimizer),
      nonfinite_(nonfinite),
      graph_(schedule, network, optimizer,
             {.has_norm = emulated == nullptr || on_simgrid,
              .can_skip = emulated == nullptr && nonfinite == NonFinitePolicy::skip,
              .evaluated = evaluated}),
      tasks_(tasks_of_rank(graph_, session.local_workers())),
      meter_(graph_, schedule.workers(), session.local_workers()),
      gpu_memory_(session.memory_nodes()),
      window_(submission_window(session, schedule, config.window)),
      slots_(graph_, window_),
      data_(session, schedule, network, graph_, tasks_, slots_, parameters, window_),
      gathering_(session, schedule, network, graph_, data_),
      state_(schedule, network, graph_, data_),
      expected_(schedule, on_simgrid ? emulated : nullptr),
      computes_(emulated == nullptr),
      emulation_(computes_ || on_simgrid
                     ? nullptr
                     : std::make_unique<Emulation>(*emulated, session, schedule, graph_, data_)),
      finite_(graph_, schedule.workers(), session.on_gpus(),
              emulated == nullptr && nonfinite != NonFinitePolicy::proceed),
      progress_(graph_, session.local_workers()),
      watched_{graph_, schedule, [this] { return status(); }},
      watch_(session, config.timeout, watched_),
      runner_(session,
              {.graph = &graph_,
               .network = &network,
               .optimizer = &optimizer_,
               .loss_scale = 1.0F / static_cast<float>(schedule.microbatches())},
              {meter_, gpu_memory_, data_, expected_, finite_, progress_}, emulation_.get()),
      next_order_(first_orders()),
      submitter_(session, schedule, graph_, tasks_, data_, runner_, next_order_, emulation_.get(), window_),
      config_(config) {}

// Waits for the other ranks, which may work for long, for instance write files. The watchdog is still on.
Engine::~Engine() {
  starpu_task_wait_for_all();
  session_.mpi().barrier();
}

RankStatus Engine::status() const {
  RankStatus status = progress_.status();
  if (emulation_) status.transfer_for = emulation_->oldest_transfer().value_or(-1);
  return status;
}

StepResult Engine::run_step(int step, const model::Dataset& data) {
  StepResult result;
  result.learning_rate = model::learning_rate(optimizer_.schedule, optimizer_.learning_rate, step);
  runner_.begin_step(updates_, result.learning_rate);
  finite_.begin_step();
  progress_.enter(StepPhase::beginning, step);
  meter_.reset();
  if (session_.core() != nullptr) session_.core()->begin(schedule_, session_.logical_workers());
  data_.begin_step(step, computes_ ? &data : nullptr);
  // Ranks that start together have timelines that start together.
  session_.mpi().barrier();
  progress_.enter(StepPhase::running, step);
  const double start = clock_seconds();
  starpu_iteration_push(static_cast<unsigned long>(step));  // for traces
  submitter_.submit_step();
  starpu_iteration_pop();
  result.submission = clock_seconds() - start;
  require(starpu_mpi_wait_for_all(session_.mpi().starpu_comm()), "StarPU", "waiting for", "all tasks");
  progress_.enter(StepPhase::ending, step);
  gpu_memory_.end_step();
  session_.mpi().barrier();  // so the collective calls that follow do not wait
  result.seconds = clock_seconds() - start;
  const std::string unread = data_.data_problem();
  if (!unread.empty()) {
    progress_.enter(StepPhase::outside, step);
    throw RunFailure(fmt::format("step {}: {}", step + 1, unread), 2);
  }
  if (emulation_) result.prefetch = emulation_->sends_ahead();
  if (computes_) result.losses = gathering_.losses();
  result.jobs = meter_.take_jobs();
  expected_.learn(result.jobs);
  result.jobs = gathering_.jobs(std::move(result.jobs));
  result.workers = gathering_.workers(meter_.workers());
  const auto gradient = computes_ ? gathering_.gradient_norm() : std::nullopt;
  if (gradient) result.gradient_norm = gradient->norm;
  result.skipped_for = first_nonfinite(gradient);
  progress_.enter(StepPhase::outside, step);
  if (result.skipped_for && nonfinite_ == NonFinitePolicy::stop)
    throw RunFailure(origin_text(step, *result.skipped_for, schedule_));
  if (result.skipped_for) return result;
  ++updates_;
  result.clipped = gradient && model::clip_scale(optimizer_.clip, gradient->norm) < 1;
  return result;
}

EvaluationResult Engine::evaluate(int steps, const model::Dataset& data) {
  if (!evaluation_) {
    evaluation_ =
        std::make_unique<Evaluation>(session_, schedule_, network_, data_, config_, graph_.rules().evaluated,
                                     Evaluation::Shared{gpu_memory_, next_order_});
  }
  EvaluationResult result = evaluation_->run(steps, data, watch_);
  watch_.look_at(watched_);
  if (nonfinite_ == NonFinitePolicy::stop) require_finite_losses(result, steps);
  return result;
}

std::optional<NonFiniteOrigin> Engine::first_nonfinite(const std::optional<GradientNorm>& gradient) const {
  if (nonfinite_ == NonFinitePolicy::proceed) return std::nullopt;
  if (const auto pass = finite_.first(session_.mpi())) return NonFiniteOrigin{.pass = pass};
  if (!gradient || gradient->first_nonfinite.empty()) return std::nullopt;
  return NonFiniteOrigin{.parameter = gradient->first_nonfinite};
}

std::optional<int> Engine::first_nonfinite_stage() const {
  if (!computes_ || nonfinite_ == NonFinitePolicy::proceed) return std::nullopt;
  return gathering_.first_nonfinite_stage();
}

std::vector<GpuMemory> Engine::gpu_memory() const {
  std::vector<GpuMemory> mine = session_.gpu_memory();
  gpu_memory_.write_to(mine);
  return gather_on_root<GpuMemory>(session_.mpi(), mine);
}

std::uint64_t Engine::bytes_sent_by_starpu() const {
  std::vector<std::size_t> sent(index(session_.mpi().ranks()), 0);
  starpu_mpi_comm_stats_retrieve(sent.data());
  return std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
}

}  // namespace starpipe::runtime
