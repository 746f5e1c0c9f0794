// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/run_watch.hpp"

#include <span>
#include <string>

#include "runtime/engine/wait_table.hpp"
#include "base/simgrid.hpp"

namespace starpipe::runtime {

RunWatch::RunWatch(const Session& session, double timeout, const Watched& first)
    : session_(session), now_(&first) {
  if (on_simgrid) return;
  exchange_.emplace(session.mpi());
  watchdog_.emplace(timeout, session.mpi().rank(), session.mpi().ranks(), calls());
}

WatchdogCalls RunWatch::calls() {
  return {.status = [this] { return now_.load()->status(); },
          .send = [this](const RankStatus& mine) { exchange_->send(mine); },
          .receive = [this] { return exchange_->receive(); },
          .explain =
              [this](std::span<const RankNews> news, const NewsLimits& limits) {
                const Watched& now = *now_.load();
                return wait_table(now.graph, now.schedule, session_.map(), news, limits);
              },
          .end_run = [this](const std::string& message) { session_.mpi().abort(message); }};
}

}  // namespace starpipe::runtime
