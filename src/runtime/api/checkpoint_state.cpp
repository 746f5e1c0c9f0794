// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/checkpoint_state.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/checkpoint/saved_pieces.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/model/stage.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/config/config_rules.hpp"

namespace starpipe::runtime {
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

// What the checkpoint has of a parameter, which a run with other shards may have written.
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
      throw InputError(fmt::format("--resume: {} has {}, which is no parameter of the model", name, saved));
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
