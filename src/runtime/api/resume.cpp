// SPDX-License-Identifier: Apache-2.0
// CheckpointFolder of checkpointing.hpp, and what a checkpoint holds.
#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/numbers.hpp"
#include "runtime/api/checkpointing.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {
namespace {

using nlohmann::ordered_json;

// The fact that may change when a run is resumed: the content of the validation data, if there are any.
constexpr const char* validation_fact = "data.validation";

constexpr const char* rate_steps = "training.optimizer.schedule.steps";

// Keys outside the section `model` that must not change: the data of a step, or the meaning of the
// optimizer's state, depends on them.
constexpr std::array fixed_keys = {"data.kind", "data.order", "training.seed", "training.microbatch_size",
                                   "training.optimizer.kind"};

// Keys of the section `model` that may change. Shards, and where they are added, are a matter of the
// schedule.
constexpr std::array<std::string_view, 3> free_keys = {"model.init", "model.tensor", "model.sums"};

// Returns the pieces of optimizer state that each number of a parameter has, in the order of
// optimizer_step().
std::vector<std::string> state_kinds(const model::OptimizerConfig& optimizer) {
  if (optimizer.kind == "adamw") return {"first_moment", "second_moment"};
  if (optimizer.momentum != 0) return {"velocity"};
  return {};
}

// Calls `use` with each tensor of a set: a parameter, a prefix of its name and the numbers. The prefix tells
// the value itself, which has none, from the pieces of optimizer state.
template <class Number, class Use>
void for_each_tensor(const AgreedRun& run, int set, std::span<Number> parameters, std::span<Number> optimizer,
                     Use use) {
  const auto kinds = state_kinds(run.config.training.optimizer);
  std::size_t first = 0;
  const std::vector<model::ParameterSet> sets = run.experiment.network.sets();
  for (const model::Parameter& parameter : sets[index(set)].parameters) {
    const std::size_t size = parameter.size();
    use(parameter, "", parameters.subspan(first, size));
    for (std::size_t k = 0; k < kinds.size(); ++k)
      use(parameter, state_name(kinds[k], ""), optimizer.subspan(k * parameters.size() + first, size));
    first += size;
  }
}

// Returns the checkpoint's pieces of a parameter. A run with other shards may have written them.
std::vector<SavedPiece> pieces_of(const CheckpointReader& reader, const std::string& prefix,
                                  const model::Parameter& parameter, const std::string& name) {
  try {
    return saved_pieces(reader, prefix, parameter);
  } catch (const InputError& error) {
    throw InputError(fmt::format("resume: {}: {}", name, error.what()));
  }
}

void require_same_parameters(const AgreedRun& run, const CheckpointReader& reader, const std::string& name) {
  std::set<std::string> known;
  for (const model::ParameterSet& set : run.experiment.network.sets()) {
    for (const model::Parameter& parameter : set.parameters) {
      const std::vector<SavedPiece> saved = pieces_of(reader, "", parameter, name);
      if (saved.empty())
        throw InputError(fmt::format("resume: {} has no {}, a parameter of the model", name, parameter.name));
      for (const SavedPiece& piece : saved) known.insert(piece.name);
    }
  }
  const auto is_state = [](const std::string& saved) { return saved.starts_with(state_prefix); };
  for (const std::string& saved : reader.names()) {
    if (!known.contains(saved) && !is_state(saved))
      throw InputError(fmt::format("resume: {} has {}, which is not a parameter of the model", name, saved));
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
          throw InputError(fmt::format("resume: {} has no {}", name, state_name(kind, parameter.name)));
        throw InputError(fmt::format("resume: training.optimizer.momentum: {} was written {} momentum", name,
                                     saved ? "with" : "without"));
      }
    }
  }
}

// Reads the trained numbers of a set of parameters from a checkpoint. Throws InputError with the file and the
// tensor.
void read_set(const AgreedRun& run, CheckpointReader& reader, int set, std::span<float> parameters,
              std::span<float> optimizer) {
  for_each_tensor<float>(run, set, parameters, optimizer,
                         [&](const model::Parameter& parameter, const std::string& prefix,
                             std::span<float> numbers) { read_numbers(reader, prefix, parameter, numbers); });
}

}  // namespace

std::vector<TensorView> tensors_of(const AgreedRun& run, const SetCopy& copy) {
  std::vector<TensorView> tensors;
  for_each_tensor<const float>(
      run, copy.set, copy.parameters, copy.optimizer,
      [&](const model::Parameter& parameter, const std::string& prefix, std::span<const float> numbers) {
        tensors.push_back({prefix + parameter.label(), parameter.shape, numbers});
      });
  return tensors;
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
  facts["training.microbatches"] = run.experiment.schedule.whole_microbatches();
  facts["data.path"] = fmt::format("content {:016x}", run.experiment.data->digest());
  if (const model::Dataset* const validation = run.experiment.validation.get())
    facts[validation_fact] = fmt::format("content {:016x}", validation->digest());
  const model::LearningRateSchedule& rates = run.config.training.optimizer.schedule;
  if (rates.kind == "linear" || rates.kind == "cosine")
    facts[rate_steps] = rates.steps.value_or(run.config.training.steps);
  return facts;
}

namespace {

// Throws InputError when the run cannot continue from a checkpoint: for the first name or shape of a
// parameter that differs, then for the first fact. `facts` and `name`: of the checkpoint.
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
    throw InputError(fmt::format("resume: {}: {} was written with {}, this run has {}{}", key, name,
                                 saved.dump(), mine[key].dump(),
                                 key == rate_steps ? " from training.steps; give the key" : ""));
  };
  require_same_parameters(run, reader, name);
  for (const auto& [key, value] : mine.items()) require_same(key);
  require_same_state(run, reader, name);
}

// True for the settings that affect the trained weights and the evaluations: the keys of `training`, the
// precision, and the data of evaluations. False for the number of steps, since another line tells it, and the
// number of micro-batches, which cannot differ.
bool affects_training(std::string_view path) {
  constexpr std::array<std::string_view, 3> others = {"/runtime/precision", "/data/validation",
                                                      "/evaluate/microbatches"};
  if (path == "/training/steps" || path == "/training/microbatches") return false;
  return path.starts_with("/training/") || std::ranges::find(others, path) != others.end();
}

RunRecord record_of(const Manifest& manifest, const std::string& name) {
  const auto require = [&](bool holds, const char* key) {
    if (!holds) throw InputError(fmt::format("{}: manifest.json has no valid \"run.{}\"", name, key));
  };
  const auto value = [&](const char* key) {  // null for a missing key
    return manifest.run.is_object() ? manifest.run.value(key, nlohmann::json()) : nlohmann::json();
  };
  RunRecord record;
  const nlohmann::json updates = value("updates");
  // A step makes at most one update.
  require(updates.is_number_unsigned() &&
              updates.get<std::uint64_t>() <= static_cast<std::uint64_t>(manifest.step),
          "updates");
  record.updates = updates.get<int>();
  record.metrics.step = static_cast<int>(manifest.step);
  for (const auto& [key, member] : {std::pair{"metrics_bytes", &MetricsPosition::bytes},
                                    std::pair{"metrics_hash", &MetricsPosition::hash}}) {
    const nlohmann::json number = value(key);
    require(number.is_null() || number.is_number_unsigned(), key);
    if (!number.is_null()) record.metrics.*member = number.get<std::uint64_t>();
  }
  record.facts = value("facts");
  require(record.facts.is_object(), "facts");
  record.config = value("config");
  using Pointer = nlohmann::ordered_json::json_pointer;
  require(record.config.contains(Pointer("/training")) && record.config["training"].is_object(),
          "config.training");
  require(record.config.contains(Pointer("/runtime/precision")), "config.runtime.precision");
  const nlohmann::json products = value("products");
  const auto is_text = [](const nlohmann::json& one) { return one.is_string(); };
  require(products.is_null() || (products.is_array() && std::ranges::all_of(products, is_text)), "products");
  if (!products.is_null()) record.products = products.get<std::vector<std::string>>();
  return record;
}

// Returns a line for each of these settings that differs.
std::vector<std::string> changed_settings(const nlohmann::json& before, const nlohmann::json& now) {
  const nlohmann::json old_values = before.flatten();
  const nlohmann::json new_values = now.flatten();
  ordered_json either = old_values;  // its keys first
  either.update(ordered_json(new_values));
  std::vector<std::string> lines;
  for (const auto& [path, ignored] : either.items()) {
    const auto text = [&path = path](const nlohmann::json& values) {
      return values.contains(path) ? values.at(path).dump() : std::string("nothing");
    };
    if (!affects_training(path) || text(old_values) == text(new_values)) continue;
    std::string key = path.substr(1);
    std::ranges::replace(key, '/', '.');
    lines.push_back(fmt::format("{} was {}, and is {} from now on", key, text(old_values), text(new_values)));
  }
  return lines;
}

/// The first file of a checkpoint that is damaged, of those that a rank has checked.
using Problem = std::pair<std::size_t, std::string>;  // its number in the manifest, and one line

// Collective. Each rank checks every n-th file, n being the number of ranks: one rank alone would read the
// whole model. Returns the first problem of all ranks on rank 0; "" if there is none, and on the others.
std::string problem_of_parts(const Mpi& mpi, const std::string& directory, const Manifest& manifest) {
  Problem first(manifest.parts.size(), "");
  for (std::size_t p = index(mpi.rank()); p < manifest.parts.size(); p += index(mpi.ranks())) {
    try {
      require_whole_part(directory, manifest.parts[p]);
    } catch (const std::exception& problem) {
      first = {p, problem.what()};
      break;
    }
  }
  const std::vector<Problem> all = values_on_root(mpi, first);
  return all.empty() ? "" : std::ranges::min(all).second;
}

// Collective. Returns the same as find_newest() on rank 0, whose folder all ranks see.
Found find_newest_together(const Mpi& mpi, const std::filesystem::path& folder) {
  Found found;
  if (mpi.rank() != 0) {
    for (std::string directory; !(directory = mpi.share("")).empty();)
      problem_of_parts(mpi, directory, parse_manifest(mpi.share("")));
    return found;
  }
  std::exception_ptr failure;
  try {
    found = find_newest(folder, [&](const std::filesystem::path& directory, const Manifest& manifest) {
      const std::string text = manifest_text(manifest);
      std::ignore = mpi.share(directory.string());
      const std::string problem = problem_of_parts(mpi, directory.string(), parse_manifest(mpi.share(text)));
      if (!problem.empty()) throw InputError(problem);
    });
  } catch (...) {
    failure = std::current_exception();
  }
  std::ignore = mpi.share("");  // no more checkpoints
  if (failure) std::rethrow_exception(failure);
  return found;
}

// True if the validation file has the same name but other content. (A changed name is reported as a changed
// setting.)
bool has_other_validation(const RunRecord& record, const AgreedRun& run) {
  const ordered_json none;
  const ordered_json::json_pointer file("/data/validation");
  return record.config.value(file, none) == config_json(run.config).value(file, none) &&
         record.facts.value(validation_fact, none) != training_facts(run).value(validation_fact, none);
}

}  // namespace

std::vector<std::string> products_of(const AgreedRun& run) {
  std::set<std::string> products;
  for (const RankLocation& rank : run.locations) {
    if (!rank.products.empty()) products.insert(rank.products);
  }
  return {products.begin(), products.end()};
}

nlohmann::json to_json(const RunRecord& record) {
  const auto or_null = [](const auto& value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  return {{"updates", record.updates},
          {"metrics_bytes", or_null(record.metrics.bytes)},
          {"metrics_hash", or_null(record.metrics.hash)},
          {"facts", record.facts},
          {"config", record.config},
          {"products", record.products}};
}

CheckpointFolder::CheckpointFolder(const AgreedRun& run, bool resume) : run_(run) {
  agree(run.mpi, [&] {
    if (run.mpi.rank() == 0) lock_.emplace(path());
    return true;
  });
  require_shared();
  agree(run.mpi, [&] {
    Found found;
    if (resume) found = find_newest_together(run.mpi, path());
    if (run.mpi.rank() == 0) choose(resume, std::move(found));
    return true;
  });
  directory_ = run.mpi.share(directory_.string());
  if (directory_.empty()) return;
  found_ = parse_manifest(run.mpi.share(found_ ? manifest_text(*found_) : ""));
  record_ = record_of(*found_, directory_.string());
}

void CheckpointFolder::require_shared() const {
  const std::string text = run_.mpi.share(lock_ ? lock_->text() : "");
  const std::string machine = find_hardware().machine;
  const std::string machine_of_0 = run_.mpi.share(machine);
  agree(run_.mpi, [&] {
    const int rank = run_.mpi.rank();
    if (rank == 0) return true;
    require_input(text.empty() || shows_lock(path(), text), "checkpoint.folder",
                  fmt::format("{} is not the same folder on rank {} (host {}) and rank 0 (host {}); name a "
                              "folder that all ranks share",
                              path().string(), rank, machine, machine_of_0));
    require_writable("checkpoint.folder", path() / part_name(rank));
    return true;
  });
}

void CheckpointFolder::choose(bool resume, Found found) {
  const auto say = [this](const std::string& line) { run_.mpi.say(line); };
  if (!lock_->warning().empty()) say(lock_->warning());
  if (!resume) {
    if (!has_checkpoints(path())) return;
    throw InputError(fmt::format(
        "checkpoint.folder: {} has checkpoints; resume from them, or name another folder", path().string()));
  }
  if (!found.manifest) {
    if (!found.damaged.empty()) {
      throw InputError(fmt::format("resume: no checkpoint in {} can be read: {}", path().string(),
                                   found.damaged.front().reason));
    }
    for (const std::string& line : set_aside(found)) say(line);
    say(fmt::format("resume: {} has no checkpoint; training begins with step 1", path().string()));
    return;
  }
  const std::string name = found.directory.string();
  CheckpointReader reader(found.directory, *found.manifest);
  const int steps = run_.config.training.steps;
  if (found.manifest->step > steps) {
    throw InputError(fmt::format("resume: {} is after step {}, and training.steps is {}", name,
                                 found.manifest->step, steps));
  }
  const RunRecord record = record_of(*found.manifest, name);
  require_same_training(run_, reader, record.facts, name);
  for (const DamagedCheckpoint& damaged : found.damaged)
    say(fmt::format("resume: skipped the checkpoint of step {}: {}", damaged.step, damaged.reason));
  for (const std::string& line : set_aside(found)) say(line);
  say(fmt::format("resume: continues after step {} of {}, from {}", found.manifest->step, steps, name));
  for (const std::string& line : changed_settings(record.config, config_json(run_.config)))
    say("resume: " + line);
  if (has_other_validation(record, run_))
    say("resume: data.validation has other content than before, so its losses cannot be compared");
  const std::vector<std::string> products = products_of(run_);
  if (!record.products.empty() && !products.empty() && record.products != products)
    say(fmt::format(
        "resume: matrix products were computed by {}, and are by {} from now on, so bits may differ "
        "from those of a run without a stop",
        fmt::join(record.products, " and "), fmt::join(products, " and ")));
  directory_ = found.directory;
  found_ = std::move(found.manifest);
}

void CheckpointFolder::restore(Engine& engine) const {
  if (!record_) return;
  try {
    agree(run_.mpi, [&] {
      // A host may have a folder of its own, with an older checkpoint of the same step.
      if (manifest_text(read_manifest(directory_)) != manifest_text(*found_))
        throw InputError(
            fmt::format("resume: {} is not the same checkpoint on all ranks", directory_.string()));
      CheckpointReader reader(directory_, *found_);
      engine.restore(record_->updates, [&](int set, std::span<float> parameters, std::span<float> optimizer) {
        read_set(run_, reader, set, parameters, optimizer);
      });
      return true;
    });
  } catch (const InputError& error) {
    throw RunFailure(error.what(), 2);  // ranks have started: they end together
  }
}

}  // namespace starpipe::runtime
