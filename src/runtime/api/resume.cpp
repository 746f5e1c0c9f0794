// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/resume.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/numbers.hpp"
#include "runtime/api/checkpointing.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/agreement.hpp"

namespace starpipe::runtime {
namespace {

// Returns the settings that affect the trained weights and the evaluations: the keys of `training`, the
// precision, and the data of evaluations. Leaves out the number of steps, since another line tells it, and
// the number of micro-batches, which cannot differ.
nlohmann::json settings_of_training(const nlohmann::json& config) {
  nlohmann::json settings;
  settings["training"] = config.at("training");
  settings["training"].erase("steps");
  settings["training"].erase("microbatches");
  settings["runtime"]["precision"] = config.at("runtime").at("precision");
  for (const char* name : {"/data/validation", "/evaluate/microbatches"}) {
    const nlohmann::json::json_pointer path(name);
    if (config.contains(path)) settings[path] = config.at(path);
  }
  return settings;
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
  for (const auto& [key, member] : {std::pair{"metrics_bytes", &RunRecord::metrics_bytes},
                                    std::pair{"metrics_hash", &RunRecord::metrics_hash}}) {
    const nlohmann::json number = value(key);
    require(number.is_null() || number.is_number_unsigned(), key);
    if (!number.is_null()) record.*member = number.get<std::uint64_t>();
  }
  record.facts = value("facts");
  require(record.facts.is_object(), "facts");
  record.config = value("config");
  if (!record.config.is_null()) {
    using Pointer = nlohmann::ordered_json::json_pointer;
    require(record.config.contains(Pointer("/training")) && record.config["training"].is_object(),
            "config.training");
    require(record.config.contains(Pointer("/runtime/precision")), "config.runtime.precision");
  }
  return record;
}

// A line for each of these settings that differs.
std::vector<std::string> changed_settings(const nlohmann::json& before, const nlohmann::json& now) {
  if (before.is_null()) return {};
  const nlohmann::json old_values = settings_of_training(before);
  const nlohmann::json new_values = settings_of_training(now);
  std::vector<std::string> lines;
  for (const nlohmann::json& change : nlohmann::json::diff(old_values, new_values)) {
    std::string key = change.at("path");
    const nlohmann::json::json_pointer path(key);
    const auto text = [&](const nlohmann::json& values) {
      return values.contains(path) ? values.at(path).dump() : std::string("nothing");
    };
    key.erase(0, 1);
    std::ranges::replace(key, '/', '.');
    lines.push_back(fmt::format("{} was {}, and is {} from now on", key, text(old_values), text(new_values)));
  }
  return lines;
}

// True if the validation file has the same name but other content. (A changed name is reported as a changed
// setting.)
bool has_other_validation(const RunRecord& record, const AgreedRun& run) {
  const nlohmann::ordered_json::json_pointer name("/data/validation");
  const nlohmann::ordered_json config = config_json(run.config);
  if (!record.config.contains(name) || !config.contains(name) || record.config[name] != config[name])
    return false;
  const nlohmann::ordered_json now = training_facts(run);
  return record.facts.contains(validation_fact) && now.contains(validation_fact) &&
         record.facts[validation_fact] != now[validation_fact];
}

}  // namespace

nlohmann::json to_json(const RunRecord& record) {
  return {{"updates", record.updates},
          {"metrics_bytes", record.metrics_bytes ? nlohmann::json(*record.metrics_bytes) : nlohmann::json()},
          {"metrics_hash", record.metrics_hash ? nlohmann::json(*record.metrics_hash) : nlohmann::json()},
          {"facts", record.facts},
          {"config", record.config}};
}

CheckpointFolder::CheckpointFolder(const AgreedRun& run, bool resume) : run_(run) {
  agree(run.mpi, [&] {
    if (run.mpi.rank() == 0) find(resume);
    return true;
  });
  directory_ = run.mpi.gather(directory_.string()).front();  // of rank 0
  if (directory_.empty()) return;
  found_ = parse_manifest(run.mpi.gather(found_ ? manifest_text(*found_) : "").front());
  record_ = record_of(*found_, directory_.string());
}

void CheckpointFolder::find(bool resume) {
  const auto say = [this](const std::string& line) { run_.mpi.say(line); };
  lock_.emplace(path());
  if (!lock_->warning().empty()) say(lock_->warning());
  if (!resume) {
    if (!has_checkpoints(path())) return;
    throw InputError(fmt::format(
        "checkpoint.folder: {} has checkpoints; give --resume to continue from them, or another folder",
        path().string()));
  }
  Found found = find_newest(path());
  if (!found.manifest) {
    if (!found.damaged.empty()) {
      throw InputError(fmt::format("--resume: no checkpoint in {} can be read: {}", path().string(),
                                   found.damaged.front().reason));
    }
    for (const std::string& line : set_aside(found)) say(line);
    say(fmt::format("--resume: {} has no checkpoint; training begins with step 1", path().string()));
    return;
  }
  const std::string name = found.directory.string();
  CheckpointReader reader(found.directory, *found.manifest);
  const int steps = run_.config.training.steps;
  if (found.manifest->step > steps) {
    throw InputError(fmt::format("--resume: {} is after step {}, and training.steps is {}", name,
                                 found.manifest->step, steps));
  }
  const RunRecord record = record_of(*found.manifest, name);
  require_same_training(run_, reader, record.facts, name);
  for (const DamagedCheckpoint& damaged : found.damaged)
    say(fmt::format("--resume: skipped the checkpoint of step {}: {}", damaged.step, damaged.reason));
  for (const std::string& line : set_aside(found)) say(line);
  say(fmt::format("--resume: continues after step {} of {}, from {}", found.manifest->step, steps, name));
  for (const std::string& line : changed_settings(record.config, config_json(run_.config)))
    say("--resume: " + line);
  if (has_other_validation(record, run_))
    say("--resume: data.validation has other content than before, so its losses cannot be compared");
  directory_ = found.directory;
  found_ = std::move(found.manifest);
}

void CheckpointFolder::restore(Engine& engine) const {
  if (!record_) return;
  try {
    agree(run_.mpi, [&] {
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
