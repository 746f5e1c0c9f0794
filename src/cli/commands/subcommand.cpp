// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/subcommand.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "cli/options/common_options.hpp"
#include "runtime/host/lost_rank.hpp"

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

Action add_subcommands(CLI::App& app) {
  std::ranges::sort(registry(), {}, &Subcommand::position);
  // One for each subcommand. `add` keeps a reference to it.
  const auto actions = std::make_shared<std::vector<Action>>(registry().size());
  for (std::size_t i = 0; i < registry().size(); ++i) registry()[i].add(app, (*actions)[i]);
  refuse_empty_values(app);
  return [actions] {
    return (*std::ranges::find_if(*actions, [](const Action& action) { return bool(action); }))();
  };
}

Ranks ranks_of(const CLI::App& app) {
  const auto added = app.get_subcommands([](const CLI::App*) { return true; });  // one for each entry
  for (std::size_t i = 0; i < added.size() && i < registry().size(); ++i) {
    if (app.got_subcommand(added[i]->get_name())) return registry()[i].ranks;
  }
  return Ranks::alone;
}

bool prints_usage(const CLI::App& app) {
  return ranks_of(app) == Ranks::alone || runtime::launcher_rank().value_or(0) == 0;
}

}  // namespace starpipe::cli
