// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// A file that an option names for output; nothing when the option is not given.
struct OutputFile {
  std::string_view option;
  std::optional<std::filesystem::path> file;
  /// What the name may end in, in lower case; empty when the suffix has been checked.
  std::string_view suffix = {};
};

/// Throws InputError when the suffix of a file is not the one expected, or when an output is also one of
/// `inputs` or another output. Empty inputs are skipped. Does not look whether files can be written.
void check_outputs(std::span<const OutputFile> outputs, std::span<const std::filesystem::path> inputs);

/// The files that a run with this configuration reads.
std::vector<std::filesystem::path> inputs_of(const runtime::Config& config);

}  // namespace starpipe::cli
