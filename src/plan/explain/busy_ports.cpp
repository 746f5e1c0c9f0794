// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/busy_ports.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "plan/explain/idle_causes.hpp"
#include "plan/simulate/fetches.hpp"
#include "plan/simulate/relays.hpp"

namespace starpipe::plan {
namespace {

class Ports {
 public:
  Ports(const Links& links, int workers) : links_(links), workers_(workers) {}

  void pass(int from, int to, std::uint64_t bytes) {
    const std::size_t level = links_.level(from, to);
    const LinkLevel& at = links_.levels()[level];
    if (at.link.beta == 0) return;
    const double seconds = at.link.time(bytes) - at.link.alpha;
    port(level, from, true).passing += seconds * at.slowness(links_.member(level, from));
    port(level, to, false).passing += seconds * at.slowness(links_.member(level, to));
  }
  void wait(int from, int to, double seconds) {
    const std::size_t level = links_.level(from, to);
    if (links_.levels()[level].link.beta == 0) return;
    port(level, from, true).waited += seconds;
    port(level, to, false).waited += seconds;
  }
  [[nodiscard]] std::vector<BusyPort> largest_first() const {
    std::vector<BusyPort> ports;
    for (const auto& [place, port] : ports_) ports.push_back(port);
    std::ranges::stable_sort(ports, std::greater<>{}, &BusyPort::passing);
    return ports;
  }

 private:
  BusyPort& port(std::size_t level, int worker, bool out) {
    const int member = links_.member(level, worker);
    const int size = level == 0 ? 1 : links_.levels()[level - 1].workers;
    const BusyPort unused = {.level = level,
                             .member = member,
                             .first_worker = member * size,
                             .last_worker = std::min(workers_, (member + 1) * size) - 1,
                             .out = out};
    return ports_.try_emplace({level, member, !out}, unused).first->second;
  }

  const Links& links_;
  int workers_;
  std::map<std::tuple<std::size_t, int, bool>, BusyPort> ports_;
};

}  // namespace

std::vector<BusyPort> busy_ports(const RecordedStep& step, const Costs& costs) {
  if (!costs.links.has_bandwidths()) return {};
  const Schedule& schedule = step.as_run;
  const Fetches fetches(schedule, costs);
  const auto first_of_rank = [&](int worker) { return worker - worker % costs.workers_of_rank; };
  Ports ports(costs.links, schedule.workers());
  std::unordered_set<std::uint64_t> copies;
  std::set<std::pair<int, int>> relayed;  // stage and holder
  if (costs.relays && step.prefetch) {
    for (const FetchedWeights& weights : relayed_weights(schedule, costs, fetches)) {
      for (const RelayStep& relay : relay_plan(weights, costs.workers_of_rank)) {
        relayed.emplace(weights.stage, weights.from);
        const bool is_first = relay.from == weights.from / costs.workers_of_rank;
        ports.pass(is_first ? weights.from : weights.readers.at(relay.from), weights.readers.at(relay.to),
                   relay.bytes);
      }
    }
  }
  for (const JobId id : schedule.order()) {
    if (schedule.copies() && is_copy(schedule.job(id).pass) && schedule.peer(id)) {
      const auto [from, to] = schedule.ends(id);
      ports.pass(from, to, costs.size(schedule.job(id).stage).stash);
    }
    const int worker = schedule.compute(id);
    fetches.for_each(id, [&](const Fetch& fetch) {
      const int rank = first_of_rank(worker);
      const bool from_other_rank = step.prefetch && rank != first_of_rank(fetch.from);
      const auto copy = fetches.copy(fetch, from_other_rank ? rank : worker);
      if (copy && !copies.insert(*copy).second) return;
      if (from_other_rank && fetch.kind == Fetch::Kind::weights &&
          relayed.contains({fetch.stage, fetch.from}))
        return;
      ports.pass(fetch.from, worker, fetch.bytes);
    });
  }
  for (const LinkWait& wait : link_waits(idle_parts(step))) {
    if (wait.from >= 0) ports.wait(wait.from, wait.to, wait.seconds);
  }
  return ports.largest_first();
}

std::string to_string(const BusyPort& port, const Links& links) {
  const std::vector<LinkLevel>& levels = links.levels();
  const std::string direction = port.out ? "out of" : "into";
  const std::string& level = levels[port.level].name;
  const std::string at = level.empty() ? fmt::format("level {}", port.level) : level;
  if (port.level == 0) return fmt::format("{} worker {} at {}", direction, port.member, at);
  const std::string& members = levels[port.level - 1].name;
  return fmt::format("{} {} {} (workers {} to {}) at {}", direction, members.empty() ? "group" : members,
                     port.member, port.first_worker, port.last_worker, at);
}

}  // namespace starpipe::plan
