// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace starpipe::runtime {

/// A tensor in a part of a checkpoint.
struct TensorRecord {
  std::string name;
  std::vector<std::size_t> shape;
  std::uint32_t checksum = 0;  ///< of its values' bytes

  bool operator==(const TensorRecord&) const = default;
};

/// A file of a checkpoint, written by one rank.
struct PartRecord {
  std::string file;  ///< its name in the checkpoint's directory
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< of the whole file
  std::vector<TensorRecord> tensors;

  bool operator==(const PartRecord&) const = default;
};

/// The content of a checkpoint. A directory is a checkpoint once its manifest is there.
struct Manifest {
  std::int64_t step = 0;  ///< steps done, at least 0
  nlohmann::json run;     ///< what the training loop keeps beside the tensors; any JSON
  std::vector<PartRecord> parts;

  bool operator==(const Manifest&) const = default;
};

/// JSON of a part, for its way from its rank to rank 0.
nlohmann::json part_to_json(const PartRecord& part);
/// Throws InputError for any other JSON.
PartRecord part_from_json(const nlohmann::json& json);

/// The manifest as text in JSON. The last key, crc32, has the checksum of all bytes before the comma in front
/// of it. Bytes of `run` that are no
/// UTF-8 become U+FFFD. Throws std::invalid_argument when a tensor or a file is there twice, or a file's name
/// is no plain name.
std::string manifest_text(const Manifest& manifest);
/// Throws InputError (one line, without the file) when the text is damaged, or of another format or version.
Manifest parse_manifest(const std::string& text);

}  // namespace starpipe::runtime
