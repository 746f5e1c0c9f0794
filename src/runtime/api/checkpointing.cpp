// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/checkpointing.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <exception>
#include <new>
#include <set>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/signal_requests.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::runtime {
namespace {

// The number of a word of checkpoint_signals; nothing for "none".
std::optional<int> number_of(std::string_view signal) {
  constexpr std::array numbers = {std::pair{"USR1", SIGUSR1}, std::pair{"USR2", SIGUSR2},
                                  std::pair{"HUP", SIGHUP}, std::pair{"XCPU", SIGXCPU}};
  static_assert(numbers.size() + 1 == checkpoint_signals.size());
  for (const auto& [word, number] : numbers) {
    if (word == signal) return number;
  }
  return std::nullopt;
}

// Does the work on a thread of its own; now, where the system has no memory for a thread.
template <class Work>
std::future<std::invoke_result_t<Work>> begin_work(Work work) {
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
    task();
    return task.get_future();
  }
}

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
  return thread_.valid() && thread_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

bool Checkpointing::is_due(int steps) {
  constexpr unsigned running = 4;
  const unsigned mine = static_cast<unsigned>(take_signal_requests());
  unsigned any = 0;
  for (const unsigned of_rank : run_.mpi.gather_values(mine | (is_running() ? running : 0))) any |= of_rank;
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
  return std::ranges::max(run_.mpi.gather_values(seconds.count()));
}

void Checkpointing::begin_writing(const MetricsFile* metrics) {
  record_ = {.updates = engine_.updates(),
             .metrics_bytes = std::nullopt,
             .metrics_hash = std::nullopt,
             .facts = training_facts(run_),
             .config = config_json(run_.config)};
  if (metrics != nullptr) {
    record_.metrics_bytes = metrics->bytes();
    record_.metrics_hash = metrics->hash();
    metrics_file_ = metrics->path();
  }
  const bool alone = run_.mpi.ranks() == 1;  // no other rank's part is missing
  phase_ = alone ? Phase::commit : Phase::parts;
  thread_ = begin_work([this, alone] {
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
    if (!metrics_file_.empty()) sync_file(metrics_file_);
    outcome.warnings = runtime::commit(folder_.path(), manifest, run_.config.checkpoint.keep).warnings;
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
  std::vector<std::string> parts = run_.mpi.gather(part_to_json(mine).dump());
  if (run_.mpi.rank() != 0) return;
  thread_ = begin_work([this, parts = std::move(parts)] { return commit(parts); });
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

namespace {

using nlohmann::ordered_json;

constexpr const char* rate_steps = "training.optimizer.schedule.steps";

// Keys outside the section `model` that must not change: the data of a step, or the meaning of the
// optimizer's state, depends on them.
constexpr std::array fixed_keys = {"data.kind", "data.order", "training.seed", "training.microbatch_size",
                                   "training.optimizer.kind"};

// Keys of the section `model` that may change. Shards, and where they are added, are a matter of the
// schedule.
constexpr std::array<std::string_view, 3> free_keys = {"model.init", "model.tensor", "model.sums"};

// The pieces of optimizer state that each number of a parameter has, in the order of optimizer_step().
std::vector<std::string> state_kinds(const model::OptimizerConfig& optimizer) {
  if (optimizer.kind == "adamw") return {"first_moment", "second_moment"};
  if (optimizer.momentum != 0) return {"velocity"};
  return {};
}

// Returns the checkpoint's pieces of a parameter. A run with other shards may have written them.
std::vector<SavedPiece> pieces_of(const CheckpointReader& reader, const std::string& prefix,
                                  const model::Parameter& parameter, const std::string& name) {
  try {
    return saved_pieces(reader, prefix, parameter);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--resume: {}: {}", name, error.what()));
  }
}

void require_same_parameters(const AgreedRun& run, const CheckpointReader& reader, const std::string& name) {
  std::set<std::string> known;
  for (const model::ParameterSet& set : run.experiment.network.sets()) {
    for (const model::Parameter& parameter : set.parameters) {
      const std::vector<SavedPiece> saved = pieces_of(reader, "", parameter, name);
      if (saved.empty())
        throw InputError(
            fmt::format("--resume: {} has no {}, a parameter of the model", name, parameter.name));
      for (const SavedPiece& piece : saved) known.insert(piece.name);
    }
  }
  const auto is_state = [](const std::string& saved) { return saved.starts_with(state_prefix); };
  for (const std::string& saved : reader.names()) {
    if (!known.contains(saved) && !is_state(saved))
      throw InputError(
          fmt::format("--resume: {} has {}, which is not a parameter of the model", name, saved));
  }
}

// The optimizer's kind is the same by now; sgd has a state with momentum only.
void require_same_state(const AgreedRun& run, const CheckpointReader& reader, const std::string& name) {
  const auto needed = state_kinds(run.config.training.optimizer);
  for (const model::ParameterSet& set : run.experiment.network.sets()) {
    for (const model::Parameter& parameter : set.parameters) {
      for (const char* kind : {"first_moment", "second_moment", "velocity"}) {
        const bool saved = !pieces_of(reader, state_name(kind, ""), parameter, name).empty();
        if (saved == (std::ranges::find(needed, kind) != needed.end())) continue;
        if (!saved && run.config.training.optimizer.kind == "adamw")
          throw InputError(fmt::format("--resume: {} has no {}", name, state_name(kind, parameter.name)));
        throw InputError(fmt::format("--resume: training.optimizer.momentum: {} was written {} momentum",
                                     name, saved ? "with" : "without"));
      }
    }
  }
}

}  // namespace

std::vector<TensorView> tensors_of(const AgreedRun& run, const SetCopy& copy) {
  std::vector<TensorView> tensors;
  const auto kinds = state_kinds(run.config.training.optimizer);
  const std::span<const float> parameters = copy.parameters;
  const std::span<const float> optimizer = copy.optimizer;
  std::size_t first = 0;
  const std::vector<model::ParameterSet> sets = run.experiment.network.sets();
  for (const model::Parameter& parameter : sets[index(copy.set)].parameters) {
    const std::size_t size = parameter.size();
    tensors.push_back({parameter.label(), parameter.shape, parameters.subspan(first, size)});
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      tensors.push_back({state_name(kinds[k], parameter.label()), parameter.shape,
                         optimizer.subspan(k * parameters.size() + first, size)});
    }
    first += size;
  }
  return tensors;
}

void read_set(const AgreedRun& run, CheckpointReader& reader, int set, std::span<float> parameters,
              std::span<float> optimizer) {
  const auto kinds = state_kinds(run.config.training.optimizer);
  std::size_t first = 0;
  const std::vector<model::ParameterSet> sets = run.experiment.network.sets();
  for (const model::Parameter& parameter : sets[index(set)].parameters) {
    const std::size_t size = parameter.size();
    read_numbers(reader, "", parameter, parameters.subspan(first, size));
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      read_numbers(reader, state_name(kinds[k], ""), parameter,
                   optimizer.subspan(k * parameters.size() + first, size));
    }
    first += size;
  }
}

ordered_json training_facts(const AgreedRun& run) {
  const std::vector<ConfigKey> keys = config_keys();
  ordered_json facts;
  const auto add = [&](const ConfigKey& key) {
    if (applies(key, run.config, keys)) facts[key.name] = key.get(run.config);
  };
  for (const ConfigKey& key : keys) {
    if (key.name.starts_with("model.") && std::ranges::find(free_keys, key.name) == free_keys.end()) add(key);
  }
  for (const char* name : fixed_keys) add(*find_key(keys, name));
  facts["training.microbatches"] = run.experiment.schedule.microbatches();
  facts["data.path"] = fmt::format("content {:016x}", run.experiment.data->digest());
  if (const model::Dataset* const validation = run.experiment.validation.get())
    facts[validation_fact] = fmt::format("content {:016x}", validation->digest());
  const model::LearningRateSchedule& rates = run.config.training.optimizer.schedule;
  if (rates.kind == "linear" || rates.kind == "cosine")
    facts[rate_steps] = rates.steps.value_or(run.config.training.steps);
  return facts;
}

void require_same_training(const AgreedRun& run, const CheckpointReader& reader, const ordered_json& facts,
                           const std::string& name) {
  const ordered_json mine = training_facts(run);
  const auto require_same = [&](const std::string& key) {
    // Checkpoints that are older than a key were written with its default.
    ordered_json older;
    if (key == "model.tied") older = false;
    const ordered_json saved = facts.value(key, older);
    // The user may change the learning-rate schedule. `training.steps` does not change it in passing.
    if (key == rate_steps && (saved.is_null() || run.config.training.optimizer.schedule.steps)) return;
    if (key == validation_fact || saved == mine[key]) return;  // validation changes no weights
    throw InputError(fmt::format("--resume: {}: {} was written with {}, this run has {}{}", key, name,
                                 saved.dump(), mine[key].dump(),
                                 key == rate_steps ? " from training.steps; give the key" : ""));
  };
  require_same_parameters(run, reader, name);
  for (const auto& [key, value] : mine.items()) require_same(key);
  require_same_state(run, reader, name);
}

}  // namespace starpipe::runtime
