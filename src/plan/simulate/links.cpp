// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/links.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::plan {
namespace {

void require_amounts(const Link& link) {
  if (!finite_amounts.contains(link.alpha) || !finite_amounts.contains(link.beta)) {
    throw InputError(fmt::format("communication costs must be {} (alpha={}, beta={})", finite_amounts.text(),
                                 link.alpha, link.beta));
  }
  LinkTime before{.bytes = 0, .time = link.alpha};
  for (const LinkTime& next : link.times) {
    if (next.bytes <= before.bytes || !(next.time >= before.time) || !finite_amounts.contains(next.time)) {
      throw InputError(fmt::format(
          "the times of a table must ascend with the bytes, from {} for 0 bytes; {} for {} bytes does not",
          link.alpha, next.time, next.bytes));
    }
    before = next;
  }
}

// Throws InputError for wrong ports.
void require_ports(const LinkLevel& level) {
  int before = -1;
  for (const LinkPort& port : level.ports) {
    if (port.member <= before) throw InputError("ports must be of members 0 or more, in ascending order");
    if (!(port.beta > 0) || !finite_amounts.contains(port.beta) || !(level.link.beta > 0))
      throw InputError("a port's bandwidth must be finite, as the bandwidth of its level");
    before = port.member;
  }
}

// Returns the smallest time of a further byte.
double min_slope(const Link& link) {
  double min = link.beta;
  LinkTime before{.bytes = 0, .time = link.alpha};
  for (const LinkTime& next : link.times) {
    min = std::min(min, (next.time - before.time) / static_cast<double>(next.bytes - before.bytes));
    before = next;
  }
  return min;
}

}  // namespace

double Link::time_by_table(std::uint64_t bytes) const {
  LinkTime before{.bytes = 0, .time = alpha};
  for (const LinkTime& next : times) {
    if (bytes <= next.bytes) {
      const double part =
          static_cast<double>(bytes - before.bytes) / static_cast<double>(next.bytes - before.bytes);
      return before.time + part * (next.time - before.time);
    }
    before = next;
  }
  return before.time + beta * static_cast<double>(bytes - before.bytes);
}

Link Link::slowed(double factor) const {
  Link slow{.alpha = alpha, .beta = beta * factor, .times = times};
  for (LinkTime& at : slow.times) at.time = alpha + factor * (at.time - alpha);
  return slow;
}

double LinkLevel::slowness(int member) const {
  const auto port = std::ranges::find(ports, member, &LinkPort::member);
  return port == ports.end() ? 1 : port->beta / link.beta;
}

std::string_view to_string(Sharing sharing) { return sharing_words[index(sharing)]; }

Links::Links(const Link& link) {
  require_amounts(link);
  if (!link.takes_time()) return;
  levels_.push_back({.link = link});
  port_links_.emplace_back();
}

Links::Links(std::vector<LinkLevel> levels) : levels_(std::move(levels)) {
  if (levels_.empty()) throw InputError("links: the list of levels is empty");
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    const auto refuse = [l](std::string_view problem) {
      throw InputError(fmt::format("links: level {}: {}", l, problem));
    };
    try {
      require_amounts(levels_[l].link);
      require_ports(levels_[l]);
    } catch (const InputError& error) {
      refuse(error.what());
    }
    std::vector<Link>& slow = port_links_.emplace_back();
    for (const LinkPort& port : levels_[l].ports)
      slow.push_back(levels_[l].link.slowed(levels_[l].slowness(port.member)));
    if (l + 1 == levels_.size()) {
      levels_[l].workers = 0;
      break;
    }
    const int workers = levels_[l].workers;
    if (workers < 2) refuse(fmt::format("a group of {} workers has no link", workers));
    if (l == 0) continue;
    const int inner = levels_[l - 1].workers;
    if (workers % inner != 0 || workers == inner) {
      refuse(fmt::format("{} workers are not two or more groups of {}", workers, inner));
    }
  }
}

Link Links::cheapest() const {
  if (levels_.empty()) return {};
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Link min{.alpha = infinity, .beta = infinity};
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    min.alpha = std::min(min.alpha, levels_[l].link.alpha);
    min.beta = std::min(min.beta, min_slope(levels_[l].link));
    for (const Link& slow : port_links_[l]) min.beta = std::min(min.beta, min_slope(slow));
  }
  return min;
}

const Link& Links::between_ports(std::size_t level, int from, int to) const {
  const LinkLevel& all = levels_[level];
  const int slower = all.slowness(from) >= all.slowness(to) ? from : to;
  const auto port = std::ranges::find(all.ports, slower, &LinkPort::member);
  return port == all.ports.end() ? all.link
                                 : port_links_[level][static_cast<std::size_t>(port - all.ports.begin())];
}

bool Links::uniform() const {
  return levels_.empty() ||
         (levels_.size() == 1 && levels_.front().sharing == Sharing::none && levels_.front().ports.empty());
}

bool Links::takes_time() const {
  return std::ranges::any_of(levels_, [](const LinkLevel& level) { return level.link.takes_time(); });
}

bool Links::has_bandwidths() const {
  return std::ranges::any_of(levels_, [](const LinkLevel& level) { return level.link.has_bandwidth(); });
}

bool Links::shared() const {
  return std::ranges::any_of(levels_, [](const LinkLevel& level) {
    return level.sharing != Sharing::none && level.link.has_bandwidth();
  });
}

}  // namespace starpipe::plan
