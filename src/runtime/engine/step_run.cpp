// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_run.hpp"

#include <utility>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "base/environment.hpp"
#include "runtime/host/clock.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

StepRun::StepRun(const Session& session, TaskGraph graph, const StepSetup& setup)
    : session_(session),
      schedule_(setup.schedule),
      graph_(std::move(graph)),
      tasks_(tasks_of_rank(graph_, session.local_workers())),
      meter_(graph_, schedule_.workers(), session.local_workers()),
      window_(submission_window(session, schedule_, setup.window)),
      slots_(graph_, window_),
      data_(session, schedule_, setup.network, graph_, tasks_, slots_, window_, setup.parameters,
            setup.training),
      gathering_(session, schedule_, setup.network, graph_, data_),
      expected_(schedule_, on_simgrid ? setup.emulated : nullptr),
      emulation_(setup.emulated == nullptr || on_simgrid
                     ? nullptr
                     : std::make_unique<Emulation>(*setup.emulated, session, schedule_, graph_, data_)),
      finite_(graph_, schedule_.workers(), session.on_gpus(), setup.finds_nonfinite),
      progress_(graph_, session.local_workers(), setup.optimizer == nullptr),
      watched_{graph_, schedule_, [this] { return status(); }},
      runner_(session,
              {.graph = &graph_,
               .network = &setup.network,
               .optimizer = setup.optimizer,
               .loss_scale = 1.0F / static_cast<float>(schedule_.microbatches())},
              {meter_, data_, expected_, finite_, progress_}, emulation_.get()),
      submitter_(session, schedule_, graph_, tasks_, data_, runner_, emulation_.get(), window_) {}

RankStatus StepRun::status() const {
  RankStatus status = progress_.status();
  if (emulation_) status.transfer_for = emulation_->oldest_transfer().value_or(-1);
  return status;
}

StepRun::Outcome StepRun::run(const std::string& name, int number, int data_step,
                              const model::Dataset* data) {
  finite_.begin_step();
  progress_.enter(StepPhase::beginning, number);
  meter_.reset();
  if (session_.core() != nullptr) session_.core()->begin(schedule_, session_.logical_workers());
  data_.begin_step(data_step, data);
  // Ranks that start together have timelines that start together.
  session_.mpi().barrier();
  progress_.enter(StepPhase::running, number);
  Outcome outcome;
  const double start = clock_seconds();
  const bool trains = !schedule_.forward_only();
  if (trains) starpu_iteration_push(static_cast<unsigned long>(number));  // for traces
  submitter_.submit_step();
  if (trains) starpu_iteration_pop();
  outcome.submission = clock_seconds() - start;
  require(starpu_mpi_wait_for_all(session_.mpi().starpu_comm()), "StarPU", "waiting for", "all tasks");
  progress_.enter(StepPhase::ending, number);
  session_.gpu_meters().end_step();
  session_.mpi().barrier();  // so the collective calls that follow do not wait
  outcome.seconds = clock_seconds() - start;
  if (const std::string unread = data_.data_problem(); !unread.empty()) {
    leave(number);
    throw RunFailure(fmt::format("{}: {}", name, unread), 2);
  }
  outcome.jobs = meter_.take_jobs();
  expected_.learn(outcome.jobs);
  return outcome;
}

}  // namespace starpipe::runtime
