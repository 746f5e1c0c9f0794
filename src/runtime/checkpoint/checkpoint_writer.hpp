// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints: each rank writes its part, then rank 0 makes the parts one checkpoint. A crash at any
// point leaves all earlier checkpoints whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"

namespace starpipe::runtime {

/// A tensor to write. The name of a parameter's value is the parameter's; `state_name` names the optimizer's.
struct TensorView {
  std::string name;
  std::vector<std::size_t> shape;
  std::span<const float> values;
};

/// Names of optimizer state begin with it; names of parameters do not.
inline constexpr std::string_view state_prefix = "optimizer:";

/// The name of a piece of optimizer state ("first_moment") of a parameter: "optimizer:first_moment:NAME".
std::string state_name(const std::string& kind, const std::string& parameter);

/// Writes the tensors of one rank to a file of the checkpoint that is being written, in the order given, and
/// waits until they are on the disk. Creates `folder` if it is missing. Ranks and threads may write at the
/// same time, but each part has one writer. Throws std::runtime_error with the file and the system's reason
/// (a full disk, no permission) and leaves no file then; std::invalid_argument if a name is there twice or a
/// tensor's values do not fit its shape.
PartRecord write_part(const std::filesystem::path& folder, std::int64_t step, int rank,
                      std::span<const TensorView> tensors);

/// A new checkpoint.
struct Committed {
  std::filesystem::path directory;
  /// One line for each older checkpoint that could not be removed.
  std::vector<std::string> warnings;
};

/// Rank 0 calls it after all parts of `manifest` are written. Makes them a checkpoint by one rename, and
/// waits until it is on the disk. Then removes older checkpoints, so that the newest `keep` (at least 1) that
/// have all their files stay. Never removes the new one. Throws like `write_part`; it then removes the parts
/// and leaves earlier checkpoints as they were.
Committed commit(const std::filesystem::path& folder, const Manifest& manifest, int keep);

/// Rank 0 calls it if a part could not be written and all ranks know. Removes the parts of the other ranks,
/// which makes room. Throws nothing.
void abandon(const std::filesystem::path& folder, std::int64_t step) noexcept;

}  // namespace starpipe::runtime
