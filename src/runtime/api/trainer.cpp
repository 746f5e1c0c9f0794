// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/api/trainer.hpp"

#include <exception>
#include <stdexcept>
#include <typeinfo>

#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "runtime/api/training.hpp"
#include "runtime/engine/memory_need.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/report/report.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe {
inline namespace v0 {
namespace {

bool process_has_runtime = false;

}  // namespace

MpiLibrary::MpiLibrary(std::function<void(const std::string& line)> on_late)
    : mpi_(std::make_unique<runtime::StartedMpi>(std::move(on_late))) {}
MpiLibrary::~MpiLibrary() = default;

Runtime::Runtime(MPI_Comm comm, RuntimeOptions options) : exceptions_(std::uncaught_exceptions()) {
  if (process_has_runtime) throw std::logic_error("this process has a Runtime already");
  mpi_ = std::make_unique<runtime::Mpi>(comm, runtime::RunListener{.message = std::move(options.on_message),
                                                                   .progress = std::move(options.on_progress),
                                                                   .abort = std::move(options.on_abort)});
  process_has_runtime = true;
}

Runtime::~Runtime() {
  end_if_alone();
  if (has_trainer_) mpi_->abort("the Runtime ends before its Trainer");  // which still has tasks on it
  process_has_runtime = false;
}

// Other ranks would wait for this one, and so would it for them, in the destructors that come. A destructor
// cannot read the exception that runs it.
void Runtime::end_if_alone() const {
  if (std::uncaught_exceptions() > exceptions_ && !throws_everywhere_ && ranks() > 1)
    mpi_->abort(
        "an exception of the program has ended the run of this rank alone; catch it where it is thrown to "
        "see its text");
}

int Runtime::rank() const { return mpi_->rank(); }
int Runtime::ranks() const { return mpi_->ranks(); }

void Runtime::require_none(const std::string& problem) const {
  const std::string first = mpi_->first_problem(problem);
  throws_everywhere_ = !first.empty();
  if (!first.empty()) throw InputError(first);
}

void Runtime::fail(const std::string& message, int status) const {
  throws_everywhere_ = true;
  throw RunFailure(message, status);
}

template <class Work>
auto Runtime::on_all_ranks(Work work) const {
  throws_everywhere_ = false;
  try {
    return work();
  } catch (const std::exception& error) {
    // A plain std::logic_error is the program's mistake, on every rank.
    throws_everywhere_ = dynamic_cast<const InputError*>(&error) != nullptr ||
                         dynamic_cast<const RunFailure*>(&error) != nullptr ||
                         typeid(error) == typeid(std::logic_error);
    if (!throws_everywhere_ && ranks() > 1) runtime::or_abort(*mpi_, [] { throw; });
    throw;
  } catch (...) {
    if (ranks() > 1) mpi_->abort("an exception that is not a std::exception");
    throw;
  }
}

// The other ranks learn of an exception only from `agree` and `fail`.
template <class Value>
std::function<void(const Value&)> Runtime::guarded(std::function<void(const Value&)> call) const {
  if (!call) return {};
  return [this, call = std::move(call)](const Value& value) {
    throws_everywhere_ = false;
    try {
      call(value);
    } catch (const std::exception& error) {
      if (!throws_everywhere_ && ranks() > 1) mpi_->abort(error.what());
      throw;
    }  // on_all_ranks, which has called `run`, catches anything else
  };
}

Trainer::Trainer(Runtime& runtime, Config config, TrainerParts parts) : runtime_(runtime) {
  runtime.on_all_ranks([&] {
    if (runtime.has_trainer_) throw std::logic_error("this Runtime has a Trainer already");
    training_ = std::make_unique<runtime::Training>(runtime.mpi(), std::move(config), std::move(parts));
  });
  runtime.has_trainer_ = true;
}

Trainer::~Trainer() {
  runtime_.end_if_alone();
  training_.reset();
  runtime_.has_trainer_ = false;
}

template <class Result>
Result Trainer::call(Result (runtime::Training::*function)()) {
  return runtime_.on_all_ranks([&] { return (*training_.*function)(); });
}

bool Trainer::resume() { return call(&runtime::Training::resume); }
Step Trainer::step() { return call(&runtime::Training::step); }
bool Trainer::run() { return call(&runtime::Training::run); }
Evaluation Trainer::evaluate() { return call(&runtime::Training::evaluate); }
void Trainer::save() { call(&runtime::Training::save); }
void Trainer::save_weights(const std::filesystem::path& file, const model::SaveFormat& format) {
  runtime_.on_all_ranks([&] { training_->save_weights(file, format); });
}
std::vector<std::vector<float>> Trainer::weights() { return call(&runtime::Training::weights); }
std::vector<std::vector<float>> Trainer::gradients() { return call(&runtime::Training::gradients); }

std::string Trainer::report() {
  return runtime_.on_all_ranks([&]() -> std::string {
    const runtime::Training::Result result = training_->result();
    if (!result.compared) return "";
    return plan::json_text(runtime::training_report(*training_, result));
  });
}

void Trainer::on_step(std::function<void(const Step&)> call) {
  training_->on_step = runtime_.guarded(std::move(call));
}
void Trainer::on_evaluation(std::function<void(const Evaluation&)> call) {
  training_->on_evaluation = runtime_.guarded(std::move(call));
}
void Trainer::accept_signals() { training_->accept_signals(); }

int Trainer::steps_done() const { return training_->steps_done(); }
const Config& Trainer::config() const { return training_->agreed().config; }
const model::Network& Trainer::network() const { return training_->agreed().experiment.network; }
const plan::Schedule& Trainer::schedule() const { return training_->agreed().experiment.schedule; }

Prediction predict(const Config& config, const TrainerParts& parts,
                   const std::vector<plan::Durations>& durations) {
  Config wanted = runtime::with_parts(config, parts);
  if (const auto choice = runtime::choose_partition(wanted))
    wanted = runtime::with_partition(std::move(wanted), *choice);
  if (!durations.empty()) wanted = runtime::with_emulated_times(std::move(wanted), durations);
  const runtime::Experiment run = runtime::plan_run(wanted, parts.schedule);
  const plan::Costs costs = run.emulated
                                ? runtime::with_links_of_ranks(run.costs, wanted.runtime,
                                                               run.schedule.workers(), run.schedule.workers())
                                : run.costs;
  Prediction prediction{.schedule = run.schedule, .timeline = plan::simulate(run.schedule, costs)};
  for (const plan::Transfers& to : prediction.timeline.received)
    prediction.received_bytes.push_back(to.total().bytes);
  for (const runtime::DeviceNeed& need : runtime::memory_need_of(wanted, run, costs, prediction.timeline))
    prediction.memory_bytes.push_back(need.peak.total());
  return prediction;
}

}  // namespace v0
}  // namespace starpipe
