// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli/input/yaml.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::cli {

/// The links between the workers of a machine, as a file says.
struct LinksFile {
  plan::Links links;
  /// Times are in seconds; otherwise they are in a unit without a name.
  bool in_seconds = false;
};

/// Reads a map whose key `levels` has a list of maps, innermost level first, each with `latency` and
/// `bandwidth`, all with units or all without; `workers`, the workers of a group, in all but the last;
/// perhaps `name`, and `sharing`: none, in-order or fair. docs/links.md describes the file. The file of a
/// cluster (read_cluster) has such levels, too; its other keys are not read. Throws InputError
/// naming file, line, key and value.
LinksFile read_links(const std::filesystem::path& file);

/// Reads the value of the key `levels` of a map in `file`, as `read_links` does.
LinksFile read_levels(const YamlValue& levels, const std::string& file);

/// The text of a file that `read_links` reads as these links, whose times are in seconds. `comments`: lines
/// that come first.
std::string links_yaml(const plan::Links& links, std::span<const std::string> comments);

}  // namespace starpipe::cli
