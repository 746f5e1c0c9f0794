// SPDX-License-Identifier: Apache-2.0
// A slow reference for transfers over links.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::plan::testing {

struct Sent {
  double at;
  int from;
  int to;
  std::uint64_t bytes;
};

/// The arrivals by another way: all transfers and all ports of the machine are gone through at each event.
inline std::vector<double> slow_arrivals(const Links& links, const std::vector<Sent>& sent,
                                         int workers_of_rank, bool ordered_messages = false) {
  using Port = std::tuple<std::size_t, int, bool>;
  constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct Transfer {
    std::size_t level;
    std::set<Port> ports;
    double at_ports;
    double left;  // seconds alone, at the level's bandwidth
    double max_rate;
    std::size_t after = none;  // the one before it in its stream
    double rate = 0;
    double arrival = -1;
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<Transfer> all;
  std::map<std::pair<int, int>, std::size_t> last_of_stream;
  for (const auto& [at, from, to, bytes] : sent) {
    std::size_t l = 0;
    int inner = 1;
    for (; l + 1 < links.levels().size(); ++l) {
      if (from / links.levels()[l].workers == to / links.levels()[l].workers) break;
      inner = links.levels()[l].workers;
    }
    const LinkLevel& level = links.levels()[l];
    all.push_back({l,
                   {{l, from / inner, true}, {l, to / inner, false}},
                   at + level.link.alpha,
                   level.link.time(bytes) - level.link.alpha,
                   1 / std::max(level.slowness(from / inner), level.slowness(to / inner))});
    if (from / workers_of_rank != to / workers_of_rank || level.link.time(bytes) == 0) continue;
    const auto [stream, is_new] = last_of_stream.try_emplace({from, to}, all.size() - 1);
    if (!is_new) all.back().after = std::exchange(stream->second, all.size() - 1);
  }
  double now = 0;
  while (true) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      Transfer& t = all[i];
      if (t.after != none && all[t.after].arrival >= 0) {
        const double begins = std::max(sent[i].at, all[t.after].arrival);
        t.at_ports = begins + links.levels()[t.level].link.alpha;
        t.after = none;
      }
      const bool begun = t.after == none && t.at_ports <= now;
      if (t.arrival < 0 && begun && t.left <= 1e-12) t.arrival = now;
    }
    // With ordered messages: an earlier one between the same ranks has not arrived.
    const auto waits = [&](const Transfer& t) {
      const auto connection = [&](const Transfer& transfer) {
        const Sent& s = sent[index(&transfer - all.data())];
        return std::pair(s.from / workers_of_rank, s.to / workers_of_rank);
      };
      const std::pair<int, int> of = connection(t);
      if (!ordered_messages || of.first == of.second || links.levels()[t.level].sharing != Sharing::fair)
        return false;
      return std::ranges::any_of(all, [&](const Transfer& other) {
        return other.arrival < 0 && other.left > 1e-12 && connection(other) == of &&
               links.levels()[other.level].sharing == Sharing::fair &&
               std::pair(other.at_ports, &other) < std::pair(t.at_ports, &t);
      });
    };
    const auto busy = [&](const Transfer& t) {
      return t.arrival < 0 && t.after == none && t.at_ports <= now && !waits(t);
    };
    // Rates.
    std::map<Port, double> used;
    std::set<const Transfer*> open;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Transfer& t = all[i];
      t.rate = 0;
      if (!busy(t)) continue;
      const Sharing sharing = links.levels()[t.level].sharing;
      if (sharing == Sharing::none) t.rate = t.max_rate;
      if (sharing == Sharing::fair) open.insert(&t);
      if (sharing == Sharing::in_order) {
        // No earlier unfinished transfer uses one of the ports.
        bool first = true;
        for (std::size_t j = 0; j < i; ++j) {
          const bool meets =
              std::ranges::any_of(all[j].ports, [&](const Port& p) { return t.ports.contains(p); });
          if (meets && all[j].arrival < 0 && all[j].left > 0) first = false;
        }
        t.rate = first ? t.max_rate : 0;
      }
    }
    const auto capacity = [&](const Port& p) {
      return 1 / links.levels()[std::get<0>(p)].slowness(std::get<1>(p));
    };
    while (!open.empty()) {  // all open rates grow together until a port is full
      std::map<Port, int> users;
      for (const Transfer* t : open) {
        for (const Port& p : t->ports) ++users[p];
      }
      double step = infinity;
      for (const auto& [p, count] : users) step = std::min(step, (capacity(p) - used[p]) / count);
      for (const Transfer* t : open) {
        const_cast<Transfer*>(t)->rate += step;
        for (const Port& p : t->ports) used[p] += step;
      }
      std::erase_if(open, [&](const Transfer* t) {
        return std::ranges::any_of(t->ports, [&](const Port& p) { return used[p] > capacity(p) - 1e-9; });
      });
    }
    double next = infinity;
    for (const Transfer& t : all) {
      if (t.arrival >= 0 || t.after != none) continue;
      if (t.at_ports > now) next = std::min(next, t.at_ports);
      if (busy(t) && t.rate > 0) next = std::min(next, now + t.left / t.rate);
    }
    if (next == infinity) break;
    for (Transfer& t : all) {
      if (busy(t)) t.left -= t.rate * (next - now);
    }
    now = next;
  }
  std::vector<double> times;
  for (const Transfer& t : all) times.push_back(t.arrival);
  return times;
}

inline const std::vector<Sharing> every_sharing = {Sharing::none, Sharing::in_order, Sharing::fair};
// Without ports in order: if two transfers within ranks begin at one time, the reference does not know which
// of them takes a port first.
inline const std::vector<Sharing> sharing_within_ranks = {Sharing::none, Sharing::fair};

}  // namespace starpipe::plan::testing
