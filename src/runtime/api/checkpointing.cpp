// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/checkpointing.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/files.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/signal_requests.hpp"

namespace starpipe::runtime {
namespace {

// Returns the number of a word of checkpoint_signals; nullopt for "none".
std::optional<int> number_of(std::string_view signal) {
  constexpr std::array numbers = {std::pair{"USR1", SIGUSR1}, std::pair{"USR2", SIGUSR2},
                                  std::pair{"HUP", SIGHUP}, std::pair{"XCPU", SIGXCPU}};
  static_assert(numbers.size() + 1 == checkpoint_signals.size());
  for (const auto& [word, number] : numbers) {
    if (word == signal) return number;
  }
  return std::nullopt;
}

// The work is done on a thread of its own; where the system has no memory for a thread, at the end of the
// phase.
constexpr std::launch on_a_thread = std::launch::async | std::launch::deferred;

// Infinity and NaN would push out the checkpoints from before.
void require_finite(const TensorView& parameter) {
  if (std::ranges::all_of(parameter.values, [](float value) { return std::isfinite(value); })) return;
  throw std::runtime_error(parameter.name + " has infinity or NaN");
}

}  // namespace

Checkpointing::Checkpointing(const AgreedRun& run, CheckpointFolder& folder, const Engine& engine)
    : run_(run), folder_(folder), engine_(engine) {}

void Checkpointing::accept_signals() {
  if (const auto signal = number_of(run_.config.checkpoint.on_signal))
    accept_signal_requests(run_.mpi, *signal);
}

bool Checkpointing::is_running() const {
  return thread_.valid() && thread_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

bool Checkpointing::is_due(int steps) {
  constexpr unsigned running = 4;
  const unsigned mine = static_cast<unsigned>(take_signal_requests());
  const auto any =
      static_cast<unsigned>(run_.mpi.combine(mine | (is_running() ? running : 0), Combine::bits));
  if (phase_ != Phase::idle && (any & running) == 0) end_phase();
  is_stopping_ = (any & static_cast<unsigned>(SignalRequest::stop)) != 0;
  const bool is_asked = (any & static_cast<unsigned>(SignalRequest::both)) != 0;
  return is_asked || steps % run_.config.checkpoint.every == 0 || steps == run_.config.training.steps;
}

double Checkpointing::copy(int steps) {
  const auto start = std::chrono::steady_clock::now();
  while (phase_ != Phase::idle) end_phase();
  steps_ = steps;
  copy_problem_.clear();
  try {
    std::size_t count = 0;
    engine_.read_state([&](int set, std::span<const float> parameters, std::span<const float> optimizer) {
      if (count == copies_.size()) copies_.emplace_back();
      SetCopy& copy = copies_[count++];  // of the same set as last time, whose memory is there
      copy.set = set;
      copy.parameters.assign(parameters.begin(), parameters.end());
      copy.optimizer.assign(optimizer.begin(), optimizer.end());
    });
  } catch (const std::bad_alloc&) {
    copies_.clear();
    copy_problem_ = fmt::format("rank {} has no memory for a copy of the weights", run_.mpi.rank());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  // Positive numbers are in the order of their bits.
  return std::bit_cast<double>(run_.mpi.combine(std::bit_cast<std::uint64_t>(seconds.count()), Combine::max));
}

void Checkpointing::begin_writing(const MetricsFile* metrics) {
  record_ = {.updates = engine_.updates(),
             .metrics = metrics != nullptr ? metrics->position(steps_) : MetricsPosition{.step = steps_},
             .facts = training_facts(run_),
             .config = config_json(run_.config),
             .products = products_of(run_)};
  if (metrics != nullptr) metrics_file_ = metrics->path();
  const bool alone = run_.mpi.ranks() == 1;  // no other rank's part is missing
  phase_ = alone ? Phase::commit : Phase::parts;
  thread_ = std::async(on_a_thread, [this, alone] {
    Outcome own = write_own_part();
    if (!alone) return own;
    if (own.problem.empty()) return commit({part_to_json(own.part).dump()});
    abandon(folder_.path(), steps_);
    return own;
  });
}

void Checkpointing::finish(CheckpointSummary& summary) {
  while (phase_ != Phase::idle) end_phase();
  summary.failures = failures_;
  summary.last_problem = last_problem_;
}

Checkpointing::Outcome Checkpointing::write_own_part() const {
  Outcome outcome;
  outcome.problem = copy_problem_;
  if (!outcome.problem.empty()) return outcome;
  try {
    if (run_.mpi.rank() == 0) folder_.renew_lock();
    std::vector<TensorView> tensors;
    for (const SetCopy& copy : copies_) {
      for (TensorView& tensor : tensors_of(run_, copy)) {
        const bool is_parameter = !tensor.name.starts_with(state_prefix);
        if (is_parameter && run_.config.training.nonfinite != NonFinitePolicy::proceed)
          require_finite(tensor);
        tensors.push_back(std::move(tensor));
      }
    }
    outcome.part = write_part(folder_.path(), steps_, run_.mpi.rank(), tensors);
  } catch (const std::exception& error) {
    outcome.problem = error.what();
  }
  return outcome;
}

Checkpointing::Outcome Checkpointing::commit(const std::vector<std::string>& parts) const {
  Outcome outcome;
  try {
    Manifest manifest{.step = steps_, .run = to_json(record_), .parts = {}};
    for (const std::string& part : parts)
      manifest.parts.push_back(part_from_json(nlohmann::json::parse(part)));
    // The checkpoint says how long the file is: a crash of the machine must not leave a shorter one.
    std::string unsynced;
    try {
      if (!metrics_file_.empty()) sync_file(metrics_file_);
    } catch (const std::runtime_error& error) {  // metrics must not cost a checkpoint
      unsynced = fmt::format("metrics: {}", error.what());
    }
    outcome.warnings = runtime::commit(folder_.path(), manifest, run_.config.checkpoint.keep).warnings;
    if (!unsynced.empty()) outcome.warnings.push_back(unsynced);
  } catch (const std::exception& error) {
    outcome.problem = error.what();
  }
  return outcome;
}

void Checkpointing::end_phase() {
  const Outcome mine = thread_.valid() ? thread_.get() : Outcome{};
  run_.mpi.barrier();  // the collective calls that follow then wait for no rank
  if (phase_ == Phase::parts) {
    const std::string problem = run_.mpi.first_problem(mine.problem);
    if (problem.empty()) {
      begin_commit(mine.part);
    } else {
      if (run_.mpi.rank() == 0) abandon(folder_.path(), steps_);
      end_checkpoint({.problem = problem, .part = {}, .warnings = {}});
    }
  } else {
    end_checkpoint(mine);
  }
}

void Checkpointing::begin_commit(const PartRecord& mine) {
  phase_ = Phase::commit;
  std::vector<std::string> parts = texts_on_root(run_.mpi, part_to_json(mine).dump());
  if (run_.mpi.rank() != 0) return;
  thread_ = std::async(on_a_thread, [this, parts = std::move(parts)] { return commit(parts); });
}

void Checkpointing::end_checkpoint(const Outcome& mine) {
  phase_ = Phase::idle;
  last_problem_ = run_.mpi.first_problem(mine.problem);
  if (!last_problem_.empty()) ++failures_;
  if (run_.mpi.rank() != 0) return;
  if (!last_problem_.empty()) {
    run_.mpi.say(fmt::format("the checkpoint of step {} could not be written: {}", steps_, last_problem_));
  }
  for (const std::string& warning : mine.warnings) run_.mpi.say(warning);
}

}  // namespace starpipe::runtime
