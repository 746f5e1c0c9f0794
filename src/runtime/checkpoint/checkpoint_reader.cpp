// SPDX-License-Identifier: Apache-2.0
// Finds and reads checkpoints: checkpoint_files.hpp.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;

/// Returns the size of a regular file. Throws InputError with the file for anything else: a pipe or a device
/// could be read without end.
std::uint64_t size_of(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) throw InputError(file.string() + ": is missing");
  if (!error && !fs::is_regular_file(status)) throw InputError(file.string() + ": is not a file");
  const std::uint64_t bytes = error ? 0 : fs::file_size(file, error);
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", file.string(), error.message()));
  return bytes;
}

/// Returns the checksum of a file. Throws InputError with the file when it cannot be read.
std::uint32_t checksum_of_file(const fs::path& file) {
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::vector<char> block(std::size_t{1} << 20U);
  std::uint32_t checksum = checksum_start;
  const bool open = stream.is_open();
  while (open &&
         (stream.read(block.data(), static_cast<std::streamsize>(block.size())), stream.gcount() > 0)) {
    checksum =
        checksum_of(std::string_view(block.data(), static_cast<std::size_t>(stream.gcount())), checksum);
  }
  if (!open || stream.bad()) {
    throw InputError(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
  }
  return checksum;
}

/// Returns the manifest of a checkpoint. Throws InputError, one line with the file, unless the checkpoint is
/// whole.
Manifest require_whole(const CheckpointDirectory& checkpoint, const PartsCheck& check) {
  Manifest manifest = read_manifest(checkpoint.path);
  if (manifest.step != checkpoint.step) {
    throw InputError(
        fmt::format("{}: is of step {}", (checkpoint.path / manifest_name).string(), manifest.step));
  }
  check(checkpoint.path, manifest);
  return manifest;
}

}  // namespace

void require_whole_part(const fs::path& directory, const PartRecord& part) {
  const fs::path file = directory / part.file;
  if (const std::uint64_t bytes = size_of(file); bytes != part.bytes) {
    throw InputError(fmt::format("{}: has {} bytes, the manifest says {}", file.string(), bytes, part.bytes));
  }
  const std::uint32_t checksum = checksum_of_file(file);
  if (checksum != part.checksum) {
    throw InputError(fmt::format("{}: has checksum {}, the manifest says {}", file.string(),
                                 checksum_text(checksum), checksum_text(part.checksum)));
  }
}

void require_whole_parts(const fs::path& directory, const Manifest& manifest) {
  for (const PartRecord& part : manifest.parts) require_whole_part(directory, part);
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path file = directory / manifest_name;
  constexpr std::uint64_t max_bytes = std::uint64_t{1} << 30U;  // millions of tensors
  if (size_of(file) > max_bytes) throw InputError(file.string() + ": is too large for a manifest");
  const std::string text = read_file(file);
  try {
    return parse_manifest(text);
  } catch (const InputError& problem) {
    throw InputError(fmt::format("{}: {}", file.string(), problem.what()));
  }
}

Found find_newest(const fs::path& folder, const PartsCheck& check) {
  const FolderContent content = content_of(folder);
  Found found;
  found.unfinished = content.unfinished;
  for (const CheckpointDirectory& checkpoint : content.checkpoints) {
    try {
      found.manifest = require_whole(checkpoint, check);
      found.directory = checkpoint.path;
      break;
    } catch (const std::exception& problem) {
      found.damaged.push_back({checkpoint.path, checkpoint.step, problem.what()});
    }
  }
  return found;
}

bool has_checkpoints(const fs::path& folder) { return !content_of(folder).checkpoints.empty(); }

std::vector<std::string> set_aside(const Found& found) {
  for (const DamagedCheckpoint& damaged : found.damaged) {
    const fs::path folder = damaged.directory.parent_path();
    std::error_code error;
    fs::rename(damaged.directory, free_directory(folder, damaged.step, ".damaged"), error);
    if (error) {
      throw std::runtime_error(
          fmt::format("cannot rename {}: {}", damaged.directory.string(), error.message()));
    }
    sync_folder(folder);
  }
  std::vector<std::string> warnings;
  for (const auto& [step, generation, unfinished] : found.unfinished) {
    std::error_code error;
    fs::remove_all(unfinished, error);
    if (error) warnings.push_back(fmt::format("cannot remove {}: {}", unfinished.string(), error.message()));
  }
  return warnings;
}

CheckpointReader::CheckpointReader(fs::path directory, const Manifest& manifest)
    : directory_(std::move(directory)) {
  for (const PartRecord& part : manifest.parts) {
    for (const model::TensorShape& tensor : part.tensors) places_[tensor.name] = {part.file, tensor.shape};
  }
}

const std::vector<std::size_t>* CheckpointReader::shape(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second.shape;
}

std::vector<std::string> CheckpointReader::names(const std::string& beginning) const {
  std::vector<std::string> names;
  for (auto at = places_.lower_bound(beginning); at != places_.end() && at->first.starts_with(beginning);
       ++at)
    names.push_back(at->first);
  return names;
}

void CheckpointReader::read(const std::string& name, std::span<float> values) {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    throw InputError(fmt::format("{}: tensor {}: is missing", directory_.string(), name));
  }
  const auto& [file, shape] = found->second;
  const fs::path path = directory_ / file;
  model::SafetensorsReader& open = files_.try_emplace(file, path).first->second;
  const std::vector<std::size_t>* in_file = open.shape(name);
  if (in_file == nullptr || *in_file != shape) {
    throw InputError(fmt::format("{}: tensor {}: is missing, or has another shape", path.string(), name));
  }
  open.read(name, values);
}

std::vector<SavedPiece> saved_pieces(const CheckpointReader& reader, const std::string& prefix,
                                     const model::Parameter& parameter) {
  const std::vector<std::size_t>& whole = parameter.whole_shape();
  const std::string name = prefix + parameter.name;
  const auto refuse = [&](const std::string& what) {
    throw InputError(fmt::format("{} is {}, and {} in the model", name, what, whole));
  };
  if (const auto* const shape = reader.shape(name)) {
    if (*shape != whole) refuse(fmt::format("{}", *shape));
    return {{name}};
  }
  std::vector<SavedPiece> pieces;
  std::size_t size = 0;
  for (std::string& label : reader.names(name + "[")) {
    auto piece = model::piece_from_text(std::string_view(label).substr(name.size()), whole);
    if (!piece || piece->shape() != *reader.shape(label)) refuse("in pieces of another shape");
    size += model::count_of(piece->shape());
    pieces.push_back({std::move(label), *std::move(piece)});
  }
  // Pieces of one run do not overlap.
  if (!pieces.empty() && size != model::count_of(whole)) refuse("there in part");
  return pieces;
}

void read_numbers(CheckpointReader& reader, const std::string& prefix, const model::Parameter& parameter,
                  std::span<float> numbers) {
  if (reader.shape(prefix + parameter.label()) != nullptr) {
    reader.read(prefix + parameter.label(), numbers);
    return;
  }
  std::vector<float> tensor(model::count_of(parameter.whole_shape()));
  std::vector<SavedPiece> pieces = saved_pieces(reader, prefix, parameter);
  if (pieces.empty()) pieces.push_back({prefix + parameter.name});  // `read` says that it is missing
  for (const auto& [name, piece] : pieces) {
    std::vector<float> saved(piece ? model::count_of(piece.shape()) : tensor.size());
    reader.read(name, saved);
    if (piece) {
      piece.put(saved, tensor);
    } else {
      tensor = std::move(saved);
    }
  }
  if (parameter.piece) {
    parameter.piece.take(std::span<const float>(tensor), numbers);
  } else {
    std::ranges::copy(tensor, numbers.begin());
  }
}

}  // namespace starpipe::runtime
