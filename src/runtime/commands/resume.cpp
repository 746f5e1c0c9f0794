// SPDX-License-Identifier: Apache-2.0
#include "runtime/commands/resume.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/commands/checkpoint_state.hpp"
#include "runtime/ranks/agreement.hpp"
#include "starpipe/base/messages.hpp"
#include "starpipe/base/numbers.hpp"

namespace starpipe::runtime {
namespace {

RunRecord record_of(const Manifest& manifest, const std::string& name) {
  try {
    RunRecord record;
    manifest.run.at("updates").get_to(record.updates);
    if (const auto& bytes = manifest.run.at("metrics_bytes"); !bytes.is_null())
      record.metrics_bytes = bytes.get<std::uint64_t>();
    record.facts = manifest.run.at("facts");
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: {}: {}", name, "manifest.json", error.what()));
  }
}

void say(const std::string& line) { print_message(fmt::format("starpipe: {}\n", line)); }

}  // namespace

nlohmann::json to_json(const RunRecord& record) {
  return {{"updates", record.updates},
          {"metrics_bytes", record.metrics_bytes ? nlohmann::json(*record.metrics_bytes) : nlohmann::json()},
          {"facts", record.facts}};
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
  lock_.emplace(path());
  if (!lock_->warning().empty()) say(lock_->warning());
  if (!resume) {
    if (!has_checkpoints(path())) return;
    throw InputError(fmt::format(
        "checkpoint.folder: {} has checkpoints; give --resume to go on from them, or another folder",
        path().string()));
  }
  Found found = find_newest(path());
  if (!found.manifest) {
    if (!found.damaged.empty()) {
      throw InputError(fmt::format("--resume: {} in {} can be read: {}",
                                   found.damaged.size() == 1 ? "the checkpoint" : "no checkpoint",
                                   path().string(), found.damaged.front().reason));
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
  require_same_training(run_, reader, record_of(*found.manifest, name).facts, name);
  for (const DamagedCheckpoint& damaged : found.damaged)
    say(fmt::format("--resume: skipped the checkpoint of step {}: {}", damaged.step, damaged.reason));
  for (const std::string& line : set_aside(found)) say(line);
  say(fmt::format("--resume: goes on after step {} of {}, from {}", found.manifest->step, steps, name));
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
