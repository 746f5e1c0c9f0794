// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/evaluation.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/clock.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {
namespace {

std::string place_text(std::optional<int> steps) {
  if (!steps) return "the evaluation";
  return *steps == 0 ? "the evaluation before the first step"
                     : fmt::format("the evaluation after step {}", *steps);
}

}  // namespace

void require_finite_losses(const EvaluationResult& result, std::optional<int> steps) {
  const auto bad = std::ranges::find_if_not(result.losses, [](float loss) { return std::isfinite(loss); });
  if (bad == result.losses.end()) return;
  throw RunFailure(fmt::format("{}, micro-batch {}: the loss is infinity or NaN (training.nonfinite: stop)",
                               place_text(steps), bad - result.losses.begin()));
}

Evaluation::Evaluation(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                       const StepData& training, const RuntimeConfig& config, int microbatches,
                       const Shared& shared)
    : Evaluation(session, schedule, network, &training, {}, config, microbatches, shared) {}

Evaluation::Evaluation(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                       const std::vector<std::vector<float>>& parameters, const RuntimeConfig& config,
                       int microbatches, const Shared& shared)
    : Evaluation(session, schedule, network, nullptr, parameters, config, microbatches, shared) {}

Evaluation::Evaluation(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                       const StepData* training, const std::vector<std::vector<float>>& parameters,
                       const RuntimeConfig& config, int microbatches, const Shared& shared)
    : session_(session),
      schedule_(plan::forward_passes(schedule, microbatches)),
      graph_(TaskGraph::evaluation(schedule, schedule_, network)),
      tasks_(tasks_of_rank(graph_, session.local_workers())),
      meter_(graph_, schedule.workers(), session.local_workers()),
      gpu_memory_(shared.gpu_memory),
      window_(submission_window(session, schedule_, config.window)),
      slots_(graph_, window_),
      data_(training != nullptr
                ? StepData(session, schedule_, graph_, tasks_, slots_, *training, window_)
                : StepData(session, schedule_, network, graph_, tasks_, slots_, parameters, window_)),
      gathering_(session, schedule_, network, graph_, data_),
      expected_(schedule_),
      finite_(graph_, schedule.workers(), session.on_gpus(), false),
      progress_(graph_, session.local_workers(), true),
      watched_{graph_, schedule_, [this] { return progress_.status(); }},
      runner_(session, {.graph = &graph_, .network = &network},
              {meter_, gpu_memory_, data_, expected_, finite_, progress_}, nullptr),
      submitter_(session, schedule_, graph_, tasks_, data_, runner_, shared.next_order, nullptr, window_) {}

EvaluationResult Evaluation::run(std::optional<int> steps, const model::Dataset& data, RunWatch& watch) {
  const int after = steps.value_or(0) - 1;  // steps count from 0
  finite_.begin_step();
  progress_.enter(StepPhase::beginning, after);
  watch.look_at(watched_);
  meter_.reset();
  if (session_.core() != nullptr) session_.core()->begin(schedule_, session_.logical_workers());
  const double start = clock_seconds();
  data_.begin_step(0, &data);
  session_.mpi().barrier();
  progress_.enter(StepPhase::running, after);
  submitter_.submit_step();
  require(starpu_mpi_wait_for_all(session_.mpi().starpu_comm()), "StarPU", "waiting for", "all tasks");
  progress_.enter(StepPhase::ending, after);
  gpu_memory_.end_step();
  session_.mpi().barrier();
  EvaluationResult result{.losses = {}, .loss = 0, .seconds = clock_seconds() - start};
  const std::string unread = data_.data_problem();
  if (!unread.empty()) {
    progress_.enter(StepPhase::outside, after);
    throw RunFailure(fmt::format("{}: {}", place_text(steps), unread), 2);
  }
  expected_.learn(meter_.take_jobs());
  result.losses = gathering_.losses();
  for (const float loss : result.losses) result.loss += static_cast<double>(loss);
  result.loss /= static_cast<double>(result.losses.size());
  progress_.enter(StepPhase::outside, after);
  return result;
}

Evaluator::Evaluator(const Session& session, const plan::Schedule& schedule, const model::Network& network,
                     const std::vector<std::vector<float>>& parameters, const RuntimeConfig& config,
                     int microbatches)
    : session_(session),
      gpu_memory_(session.memory_nodes()),
      next_order_(first_orders()),
      evaluation_(session, schedule, network, parameters, config, microbatches, {gpu_memory_, next_order_}),
      watch_(session, config.timeout, evaluation_.watched()) {}

Evaluator::~Evaluator() {
  starpu_task_wait_for_all();
  session_.mpi().barrier();
}

}  // namespace starpipe::runtime
