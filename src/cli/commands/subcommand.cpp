// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/subcommand.hpp"

#include <cstddef>

#include "runtime/host/lost_rank.hpp"

namespace starpipe::cli {
namespace {

struct Subcommand {
  void (*add)(CLI::App& app, Action& action);
  Ranks ranks = Ranks::alone;
};

/// In the order of `starpipe --help`.
constexpr std::array subcommands = {Subcommand{add_train, Ranks::watched},
                                    Subcommand{add_verify, Ranks::watched},
                                    Subcommand{add_evaluate, Ranks::watched},
                                    Subcommand{add_explain},
                                    Subcommand{add_report},
                                    Subcommand{add_compare, Ranks::watched},
                                    Subcommand{add_sweep},
                                    Subcommand{add_simulate},
                                    Subcommand{add_sim},
                                    Subcommand{add_schedule},
                                    Subcommand{add_plugin},
                                    Subcommand{add_search},
                                    Subcommand{add_partition},
                                    Subcommand{add_profile},
                                    Subcommand{add_periodic},
                                    Subcommand{add_info, Ranks::all}};

}  // namespace

Action add_subcommands(CLI::App& app) {
  const auto action = std::make_shared<Action>();  // of the chosen one; `add` keeps a reference to it
  for (const Subcommand& subcommand : subcommands) subcommand.add(app, *action);
  refuse_empty_values(app);
  return [action] { return (*action)(); };
}

Ranks ranks_of(const CLI::App& app) {
  const auto added = app.get_subcommands([](const CLI::App*) { return true; });  // one for each entry
  for (std::size_t i = 0; i < added.size() && i < subcommands.size(); ++i) {
    if (app.got_subcommand(added[i]->get_name())) return subcommands[i].ranks;
  }
  return Ranks::alone;
}

bool prints_usage(const CLI::App& app) {
  return ranks_of(app) == Ranks::alone || runtime::launcher_rank().value_or(0) == 0;
}

}  // namespace starpipe::cli
