// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints: checkpoint_files.hpp.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

#include "base/files.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;

/// Throws std::runtime_error with the path when the system has reported an error.
void require_done(const std::error_code& error, std::string_view action, const fs::path& path) {
  if (error)
    throw std::runtime_error(fmt::format("cannot {} {}: {}", action, path.string(), error.message()));
}

/// Throws std::invalid_argument when two tensors have one name, or values do not fit their shape.
void require_tensors(std::span<const TensorView> tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw std::invalid_argument(fmt::format("checkpoint: the tensor {} is there twice", tensor.name));
    }
    std::size_t count = 1;
    for (const std::size_t extent : tensor.shape) count *= extent;
    if (count != tensor.values.size()) {
      throw std::invalid_argument(fmt::format("checkpoint: the tensor {} has {} values, its shape {}",
                                              tensor.name, tensor.values.size(), count));
    }
  }
}

/// Throws std::runtime_error unless all parts are in the directory, with their sizes.
void require_parts(const fs::path& directory, const std::vector<PartRecord>& parts) {
  for (const PartRecord& part : parts) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(directory / part.file, error);
    require_done(error, "find", directory / part.file);
    if (bytes != part.bytes) {
      throw std::runtime_error(fmt::format("{} has {} bytes, {} were written",
                                           (directory / part.file).string(), bytes, part.bytes));
    }
  }
}

/// True if all files of the manifest are there and have its sizes. Does not read the bytes of parts.
bool has_all_files(const fs::path& directory) {
  try {
    require_parts(directory, parse_manifest(read_file(directory / manifest_name)).parts);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void move_to(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  require_done(error, "rename", from);
}

void remove_directory(const fs::path& directory) {
  std::error_code error;
  fs::remove_all(directory, error);
  require_done(error, "remove", directory);
}

/// Renames a checkpoint, then removes it: so no remainder of it is ever taken for a checkpoint.
void remove_checkpoint(const fs::path& directory) {
  const fs::path doomed = removing_directory(directory);
  remove_directory(doomed);
  move_to(directory, doomed);
  remove_directory(doomed);
}

/// Counts `keep` complete checkpoints, from `newest` to older ones, and removes all that are older than
/// these. Removes unfinished checkpoints of steps before `step`. Returns a line for each that cannot be
/// removed.
std::vector<std::string> prune(const fs::path& folder, const fs::path& newest, std::int64_t step, int keep) {
  std::vector<std::string> warnings;
  const auto remove = [&](const fs::path& directory, const auto& action) {
    try {
      action(directory);
    } catch (const std::exception& error) {
      warnings.emplace_back(error.what());
    }
  };
  const FolderContent content = content_of(folder);
  // Checkpoints of later steps are from another run: they stay, and do not count.
  int kept = 0;
  for (auto checkpoint = std::ranges::find(content.checkpoints, newest, &CheckpointDirectory::path);
       checkpoint != content.checkpoints.end(); ++checkpoint) {
    if (kept >= keep) {
      remove(checkpoint->path, remove_checkpoint);
    } else if (checkpoint->path == newest || has_all_files(checkpoint->path)) {
      ++kept;
    }
  }
  // Ranks may already write parts of later steps.
  for (const CheckpointDirectory& unfinished : content.unfinished) {
    if (unfinished.step < step) remove(unfinished.path, remove_directory);
  }
  return warnings;
}

/// Removes files that are not parts of the checkpoint: they are from a run that ended during this step's
/// write.
void remove_others(const fs::path& directory, const std::vector<PartRecord>& parts) {
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(parts, name, &PartRecord::file) == parts.end()) others.push_back(entry.path());
  }
  for (const fs::path& other : others) fs::remove_all(other);
}

/// Checks the parts, removes other files, adds the manifest, and waits until it is on the disk.
void complete(const fs::path& directory, const std::vector<PartRecord>& parts, const std::string& manifest) {
  std::error_code error;
  fs::create_directories(directory, error);  // for a checkpoint without parts
  require_done(error, "create", directory);
  require_parts(directory, parts);
  remove_others(directory, parts);
  const fs::path temporary = directory / fmt::format("{}.tmp", manifest_name);
  DurableFile file(temporary);
  file.write(manifest);
  file.finish();
  move_to(temporary, directory / manifest_name);
  sync_folder(directory);
}

}  // namespace

std::string state_name(const std::string& kind, const std::string& parameter) {
  return fmt::format("{}{}:{}", state_prefix, kind, parameter);
}

PartRecord write_part(const fs::path& folder, std::int64_t step, int rank,
                      std::span<const TensorView> tensors) {
  require_tensors(tensors);
  const fs::path directory = writing_directory(folder, step);
  std::error_code error;
  fs::create_directories(directory, error);
  require_done(error, "create", directory);

  PartRecord part;
  part.file = part_name(rank);
  part.tensors.reserve(tensors.size());
  for (const TensorView& tensor : tensors) part.tensors.push_back({tensor.name, tensor.shape});
  const std::string start = model::safetensors_start(
      part.tensors, {{"format", "pt"}, {"step", std::to_string(step)}, {"rank", std::to_string(rank)}});

  DurableFile file(directory / part.file);
  file.write(start);
  part.bytes = start.size();
  part.checksum = checksum_of(start, checksum_start);
  for (const TensorView& tensor : tensors) {
    const auto bytes = std::as_bytes(tensor.values);
    file.write(bytes);
    part.bytes += bytes.size();
    part.checksum = checksum_of(bytes, part.checksum);
  }
  file.finish();
  sync_folder(directory);
  return part;
}

Committed commit(const fs::path& folder, const Manifest& manifest, int keep) {
  if (keep < 1) throw std::invalid_argument("checkpoint: keep is below 1");
  const std::string text = manifest_text(manifest);
  Committed committed;
  try {
    complete(writing_directory(folder, manifest.step), manifest.parts, text);
    committed.directory = free_directory(folder, manifest.step);
    move_to(writing_directory(folder, manifest.step), committed.directory);  // now it is a checkpoint
  } catch (...) {
    abandon(folder, manifest.step);
    throw;
  }
  sync_folder(folder);
  committed.warnings = prune(folder, committed.directory, manifest.step, keep);
  return committed;
}

void abandon(const fs::path& folder, std::int64_t step) noexcept {
  try {
    std::error_code ignored;
    fs::remove_all(writing_directory(folder, step), ignored);
  } catch (...) {  // no memory for the name: what is left is removed when a run resumes
  }
}

}  // namespace starpipe::runtime
