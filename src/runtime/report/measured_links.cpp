// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/measured_links.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

namespace {

constexpr double half_duplex = 0.25;  // both directions are slower than one by more than this
constexpr double notable = 0.1;       // differences of more than this are told, and written

/// At most `max` of them, evenly spread.
std::vector<MeasuredPair> thinned(const std::vector<MeasuredPair>& all, std::size_t max) {
  if (all.size() <= max) return all;
  std::vector<MeasuredPair> some;
  for (std::size_t i = 0; i < max; ++i) some.push_back(all[i * all.size() / max]);
  return some;
}

/// Adds the pairs of a ring of `count` ranks, each `stride` after the one before.
void add_ring(int first, int stride, int count, std::vector<MeasuredPair>& pairs) {
  for (int i = 0; i + 1 < count; ++i) pairs.push_back({first + i * stride, first + (i + 1) * stride, {}});
  if (count > 2) pairs.push_back({first, first + (count - 1) * stride, {}});
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Returns the median of the pairs for each size that all of them have.
std::vector<Ping> median_pings(std::span<const MeasuredPair> pairs) {
  std::map<std::uint64_t, std::vector<double>> times;
  for (const MeasuredPair& pair : pairs) {
    for (const Ping& ping : pair.pings) times[ping.bytes].push_back(ping.time);
  }
  const std::size_t count = times.empty() ? 0 : times.begin()->second.size();
  std::vector<Ping> pings;
  for (const auto& [bytes, all] : times) {
    if (all.size() == count) pings.push_back({bytes, median(all)});
  }
  return pings;
}

/// Returns the seconds per byte of large messages that are alone.
double beta_alone(std::span<const Ping> pings) {
  const Ping& last = pings.back();
  const Ping& before = pings[pings.size() - 2];
  return (last.time - before.time) / static_cast<double>(last.bytes - before.bytes);
}

std::string rate_text(double beta) { return fmt::format("{:.4g} MB/s", 1e-6 / beta); }

/// Returns the level of pairs of ranks. Adds lines about it to `notes`.
plan::LinkLevel level_of(const std::string& name, std::span<const MeasuredPair> pairs,
                         std::span<const SharedPort> shared, std::span<const std::string> hosts, int per_host,
                         std::vector<std::string>& notes) {
  const bool between_hosts = name == "network";
  const auto unseen = [&](std::string_view what) {
    throw InputError(fmt::format("--links: {}: {} within {:g} s", name, what, level_limit));
  };
  if (pairs.empty()) unseen("no pair of ranks was measured");
  const int stride = between_hosts ? per_host : 1;  // ranks of a member
  PortBandwidths ports = port_bandwidths(pairs, stride);
  // Cores, not ports, make the ranks of a host differ.
  if (!between_hosts) ports.others.clear();
  std::vector<MeasuredPair> pinged;
  std::vector<MeasuredPair> alike;
  for (const MeasuredPair& pair : pairs) {
    if (pair.pings.empty()) continue;
    pinged.push_back(pair);
    if (!ports.is_other(pair.first / stride) && !ports.is_other(pair.second / stride)) alike.push_back(pair);
  }
  if (pinged.empty()) unseen("no pair of ranks was measured");
  if (shared.empty()) unseen("two messages at once were not measured");
  const std::vector<Ping> pings = median_pings(alike.empty() ? pinged : alike);
  plan::LinkLevel level{.name = name,
                        .workers = per_host,
                        .link = link_of(pings, ports.beta),
                        .sharing = sharing_of(shared),
                        .ports = ports.others};
  if (level.link.beta <= 0) throw InputError(fmt::format("--links: {}: large messages took no longer", name));
  notes.push_back(fmt::format(
      "{}: {} of ranks, messages of {} to {}; {} in each direction while both carry data; the largest "
      "difference "
      "from the times of single messages is {:.0f} %",
      name, counted_text(std::ssize(pairs), "pair"), bytes_text(pings.front().bytes),
      bytes_text(pings.back().bytes), rate_text(ports.beta), 100 * largest_deviation(level.link, pings)));
  const double alone = beta_alone(pings);
  if (ports.beta > (1 + half_duplex) * alone) {
    notes.push_back(
        fmt::format("{}: one direction alone carries {}; the file has the rate of both directions", name,
                    rate_text(alone)));
  }
  for (const auto& [member, beta] : ports.others) {
    notes.push_back(fmt::format("{}: host {} (member {}) has {}, {:.2f} times the others' {}", name,
                                hosts[index(member * per_host)], member, rate_text(beta), ports.beta / beta,
                                rate_text(ports.beta)));
  }
  const double at_once = std::ranges::max(pairs, {}, &MeasuredPair::at_once).at_once;
  if (at_once > 1 + notable) {
    notes.push_back(fmt::format(
        "{}: pairs that share no port took {:.2f} times as long at once as alone: the switch or the "
        "cores limit them, which this file cannot say",
        name, at_once));
  }
  return level;
}

}  // namespace

int ranks_per_host(std::span<const std::string> hosts) {
  if (hosts.size() < 2) throw InputError("--links: needs two ranks or more; start it under mpiexec or srun");
  std::vector<std::pair<std::string, int>> runs;
  for (const std::string& host : hosts) {
    if (!runs.empty() && runs.back().first == host) {
      ++runs.back().second;
      continue;
    }
    if (std::ranges::find(runs, host, &std::pair<std::string, int>::first) != runs.end()) {
      throw InputError(fmt::format("--links: the ranks on host {} are not consecutive", host));
    }
    runs.emplace_back(host, 1);
  }
  for (const auto& [host, count] : runs) {
    if (count == runs.front().second) continue;
    throw InputError(fmt::format("--links: {} on host {}, but {} on {}; start as many on each",
                                 counted_text(runs.front().second, "rank"), runs.front().first, count, host));
  }
  return runs.front().second;
}

std::array<std::vector<MeasuredPair>, 2> by_level(std::span<const MeasuredPair> pairs, int per_host) {
  std::array<std::vector<MeasuredPair>, 2> levels;
  for (const MeasuredPair& pair : pairs)
    levels[pair.first / per_host == pair.second / per_host ? 0 : 1].push_back(pair);
  return levels;
}

plan::Link fitted_link(std::span<const Ping> pings) {
  double one = 0, x = 0, xx = 0, t = 0, xt = 0;  // sums with weights 1 / time^2
  for (const Ping& ping : pings) {
    const auto bytes = static_cast<double>(ping.bytes);
    const double weight = 1 / (ping.time * ping.time);
    one += weight;
    x += weight * bytes;
    xx += weight * bytes * bytes;
    t += weight * ping.time;
    xt += weight * bytes * ping.time;
  }
  const double beta = (one * xt - x * t) / (one * xx - x * x);
  const double alpha = (t - beta * x) / one;
  if (beta < 0) return {.alpha = t / one, .beta = 0};
  if (alpha < 0) return {.alpha = 0, .beta = xt / xx};
  return {.alpha = alpha, .beta = beta};
}

double largest_deviation(const plan::Link& link, std::span<const Ping> pings) {
  double largest = 0;
  for (const Ping& ping : pings) largest = std::max(largest, std::abs(link.time(ping.bytes) / ping.time - 1));
  return largest;
}

plan::Link link_of(std::span<const Ping> pings, double beta) {
  const double alone = beta_alone(pings);
  const bool slower = alone > 0 && beta > (1 + half_duplex) * alone;
  plan::Link line = fitted_link(pings);
  if (largest_deviation(line, pings) <= notable) return slower ? line.slowed(beta / alone) : line;
  plan::Link table{.alpha = pings.back().time, .beta = slower || alone <= 0 ? beta : std::min(alone, beta)};
  // Disturbances only add time: a message takes no longer than a larger one.
  for (auto ping = pings.rbegin(); ping != pings.rend(); ++ping) {
    table.alpha = std::min(table.alpha, ping->time);
    table.times.insert(table.times.begin(), {ping->bytes, table.alpha});
  }
  table.times.erase(table.times.begin());
  if (slower) table = plan::Link{table.alpha, alone, table.times}.slowed(beta / alone);
  // Leaves out the sizes that the others tell.
  constexpr double negligible = 0.02;
  const plan::Link all = table;
  for (std::size_t i = table.times.size(); i-- > 0;) {
    plan::Link without = table;
    without.times.erase(without.times.begin() + static_cast<std::ptrdiff_t>(i));
    const bool tells = std::ranges::all_of(all.times, [&](const plan::LinkTime& at) {
      return std::abs(without.time(at.bytes) / at.time - 1) <= negligible;
    });
    if (tells) table = without;
  }
  return table;
}

plan::Sharing sharing_of(std::span<const SharedPort> ports) {
  constexpr double delayed = 1.3;
  const SharedPort& clearest = *std::ranges::max_element(ports, {}, &SharedPort::last);
  if (clearest.last < delayed) return plan::Sharing::none;
  // In order the first one arrives as if it were alone; with fair shares both arrive together.
  return clearest.first < (1 + clearest.last) / 2 ? plan::Sharing::in_order : plan::Sharing::fair;
}

PortBandwidths port_bandwidths(std::span<const MeasuredPair> pairs, int ranks_per_member) {
  std::map<int, double> betas;
  for (const MeasuredPair& pair : pairs) {
    for (const int rank : {pair.first, pair.second}) {
      const auto [found, is_new] = betas.try_emplace(rank / ranks_per_member, pair.both_ways);
      found->second = std::min(found->second, pair.both_ways);
    }
  }
  std::vector<double> all;
  for (const auto& [member, beta] : betas) all.push_back(beta);
  PortBandwidths result{.beta = median(all)};
  for (const auto& [member, beta] : betas) {
    if (std::abs(result.beta / beta - 1) > notable) result.others.push_back({member, beta});
  }
  return result;
}

std::vector<std::string> distinct_hosts(const std::vector<std::string>& names,
                                        const std::vector<std::string>& ids) {
  std::vector<std::string> hosts = names;
  for (std::size_t r = 0; r < names.size(); ++r) {
    for (std::size_t other = 0; other < names.size(); ++other) {
      if (names[other] != names[r] || ids[other] == ids[r]) continue;
      hosts[r] = fmt::format("{} ({})", names[r], ids[r]);
      break;
    }
  }
  return hosts;
}

std::vector<MeasuredPair> pairs_to_measure(std::span<const std::string> hosts, std::size_t max) {
  const int per_host = ranks_per_host(hosts);
  const int count = static_cast<int>(hosts.size()) / per_host;
  std::vector<MeasuredPair> within;
  for (int host = 0; host < count; ++host) add_ring(host * per_host, 1, per_host, within);
  std::vector<MeasuredPair> between;
  add_ring(0, per_host, count, between);
  std::vector<MeasuredPair> pairs = thinned(within, max);
  std::ranges::copy(thinned(between, max), std::back_inserter(pairs));
  return pairs;
}

MeasuredLinks links_of(std::span<const std::string> hosts, std::span<const MeasuredPair> pairs,
                       std::span<const SharedPort> ports) {
  const int per_host = ranks_per_host(hosts);
  const int count = static_cast<int>(hosts.size()) / per_host;
  const auto [within, between] = by_level(pairs, per_host);
  MeasuredLinks result;
  result.notes.push_back(fmt::format("Measured between {} on {}, for one worker per rank.",
                                     counted_text(std::ssize(hosts), "rank"), counted_text(count, "host")));
  std::vector<plan::LinkLevel> levels;
  const auto add = [&](const std::string& name, std::span<const MeasuredPair> of_level, bool between_hosts) {
    std::vector<SharedPort> shared;
    std::ranges::copy_if(ports, std::back_inserter(shared),
                         [&](const SharedPort& port) { return port.between_hosts == between_hosts; });
    levels.push_back(level_of(name, of_level, shared, hosts, per_host, result.notes));
  };
  if (per_host > 1) add("node", within, false);
  if (count > 1) add("network", between, true);
  result.links = plan::Links(std::move(levels));
  return result;
}

}  // namespace starpipe::runtime
