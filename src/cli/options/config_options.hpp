// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::cli {

/// A configuration file, and what the command line changes in it: CONFIG.yaml, --set, --plugin.
class ConfigOptions {
 public:
  /// Returns the option that is the file, for others to depend on.
  CLI::Option* add_to(CLI::App& command, bool required = true);
  /// As `load_config` reads it.
  [[nodiscard]] runtime::Config load() const;

 private:
  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<std::string> plugins_;
};

}  // namespace starpipe::cli
