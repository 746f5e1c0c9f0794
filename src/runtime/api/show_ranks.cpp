// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/show_ranks.hpp"

#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/api/run_on_ranks.hpp"
#include "runtime/report/rank_table.hpp"
#include "base/files.hpp"
#include "base/numbers.hpp"
#include "plan/formats/json_text.hpp"

namespace starpipe::runtime {

int show_ranks(const std::function<Config()>& configure, bool json) {
  RankRequest request("info");
  request.add_flag("--json", json);
  return run_on_ranks(
      request, [&] { return std::vector{configure()}; },
      [&](const std::vector<AgreedRun>& runs) {
        const AgreedRun& run = runs.front();
        if (run.mpi.rank() != 0) return;
        const plan::Schedule& schedule = run.experiment.schedule;
        if (json) {
          print(plan::json_text({{"schedule", schedule.name()}, {"ranks", ranks_json(run.locations)}}));
          return;
        }
        print(fmt::format("{}: {}, {}\n\n{}", schedule.name(), counted_text(schedule.workers(), "worker"),
                          counted_text(run.mpi.ranks(), "rank"), rank_table(run.locations)));
      });
}

}  // namespace starpipe::runtime
