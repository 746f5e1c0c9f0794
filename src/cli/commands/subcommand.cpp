// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/subcommand.hpp"

#include <algorithm>
#include <vector>

#include "cli/options/value_checks.hpp"

namespace starpipe::cli {
namespace {

// A function-local static: the registrations of other files may run before this file's own globals exist.
std::vector<Subcommand>& registry() {
  static std::vector<Subcommand> subcommands;
  return subcommands;
}

}  // namespace

bool register_subcommand(Subcommand subcommand) {
  registry().push_back(subcommand);
  return true;
}

void add_subcommands(CLI::App& app, Action& action) {
  std::ranges::sort(registry(), {}, &Subcommand::position);
  for (const Subcommand& subcommand : registry()) subcommand.add(app, action);
  refuse_empty_values(app);
}

}  // namespace starpipe::cli
