// SPDX-License-Identifier: Apache-2.0
// The links of info.hpp.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <mpi.h>

#include "base/numbers.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/report/info.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ping, bytes, time)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeasuredPair, first, second, pings)

namespace {

constexpr std::array<std::uint64_t, 7> sizes = {1, 1 << 10, 1 << 14, 1 << 17, 1 << 19, 1 << 21, 1 << 23};
constexpr std::size_t max_pairs = 8;  // of a level

/// Returns the number of ranks on each host.
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

/// Divides pairs of ranks into pairs on one host and pairs between hosts.
std::array<std::vector<MeasuredPair>, 2> by_level(std::span<const MeasuredPair> pairs, int per_host) {
  std::array<std::vector<MeasuredPair>, 2> levels;
  for (const MeasuredPair& pair : pairs)
    levels[pair.first / per_host == pair.second / per_host ? 0 : 1].push_back(pair);
  return levels;
}

/// At most `max` of them, evenly spread.
std::vector<MeasuredPair> thinned(const std::vector<MeasuredPair>& all, std::size_t max) {
  if (all.size() <= max) return all;
  std::vector<MeasuredPair> some;
  for (std::size_t i = 0; i < max; ++i) some.push_back(all[i * all.size() / max]);
  return some;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Returns the level of pairs of ranks, and a line about it.
std::pair<plan::LinkLevel, std::string> level_of(std::string name, std::span<const MeasuredPair> pairs) {
  std::vector<double> alphas;
  std::vector<double> betas;
  for (const MeasuredPair& pair : pairs) {
    const plan::Link link = fitted_link(pair.pings);
    alphas.push_back(link.alpha);
    betas.push_back(link.beta);
  }
  const plan::Link link{.alpha = median(alphas), .beta = median(betas)};
  if (link.beta <= 0) throw InputError(fmt::format("--links: {}: large messages took no longer", name));
  double deviation = 0;
  for (const MeasuredPair& pair : pairs) deviation = std::max(deviation, largest_deviation(link, pair.pings));
  const auto& pings = pairs.front().pings;
  std::string note = fmt::format(
      "{}: {} of ranks, messages of {} to {}; the largest difference from these times is {:.0f} %", name,
      counted_text(std::ssize(pairs), "pair"), bytes_text(pings.front().bytes),
      bytes_text(pings.back().bytes), 100 * deviation);
  plan::LinkLevel level{.name = std::move(name), .link = link};
  return {std::move(level), std::move(note)};
}

/// On the two ranks of a pair. Returns half of the shortest round trip of each size.
std::vector<Ping> ping(const Mpi& mpi, const MeasuredPair& pair) {
  constexpr int tag = 17;
  const bool starts = mpi.rank() == pair.first;
  const int other = starts ? pair.second : pair.first;
  std::vector<char> message(sizes.back());
  std::vector<Ping> pings;
  for (const std::uint64_t bytes : sizes) pings.push_back({bytes, std::numeric_limits<double>::infinity()});
  // A short disturbance of the host affects one round, and so all sizes alike.
  constexpr int rounds = 8;
  for (int round = 0; round < rounds; ++round) {
    for (Ping& shortest : pings) {
      const int repetitions = shortest.bytes <= sizes[3] ? 10 : 3;
      const int count = static_cast<int>(shortest.bytes);
      for (int i = 0; i < repetitions; ++i) {
        const double start = clock_seconds();
        if (starts) MPI_Send(message.data(), count, MPI_BYTE, other, tag, mpi.comm());
        MPI_Recv(message.data(), count, MPI_BYTE, other, tag, mpi.comm(), MPI_STATUS_IGNORE);
        if (!starts) MPI_Send(message.data(), count, MPI_BYTE, other, tag, mpi.comm());
        // The first messages of a size set up buffers.
        if (i >= 1) shortest.time = std::min(shortest.time, (clock_seconds() - start) / 2);
      }
    }
  }
  for (Ping& shortest : pings) shortest.time = std::max(shortest.time, 1e-9);
  return pings;
}

}  // namespace

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
  std::vector<MeasuredPair> all;
  for (int a = 0; a < static_cast<int>(hosts.size()); ++a) {
    for (int b = a + 1; b < static_cast<int>(hosts.size()); ++b) all.push_back({a, b, {}});
  }
  std::vector<MeasuredPair> pairs;
  for (const auto& level : by_level(all, ranks_per_host(hosts)))
    std::ranges::copy(thinned(level, max), std::back_inserter(pairs));
  return pairs;
}

MeasuredLinks links_of(std::span<const std::string> hosts, std::span<const MeasuredPair> pairs) {
  const int per_host = ranks_per_host(hosts);
  const auto [within, between] = by_level(pairs, per_host);
  MeasuredLinks result;
  result.notes.push_back(fmt::format("Measured between {} on {}, for one worker per rank.",
                                     counted_text(std::ssize(hosts), "rank"),
                                     counted_text(std::ssize(hosts) / per_host, "host")));
  std::vector<plan::LinkLevel> levels;
  const auto add = [&](std::string name, std::span<const MeasuredPair> of_level) {
    if (of_level.empty()) return;
    auto [level, note] = level_of(std::move(name), of_level);
    level.workers = per_host;
    levels.push_back(std::move(level));
    result.notes.push_back(std::move(note));
  };
  add("node", within);
  add("network", between);
  result.notes.emplace_back("Pairs were measured sequentially. Set `sharing` where transfers share a link.");
  result.links = plan::Links(std::move(levels));
  return result;
}

MeasuredLinks measure_links(const Mpi& mpi) {
  const Hardware hardware = find_hardware();
  const std::vector<std::string> names = mpi.gather(hardware.machine);
  const std::vector<std::string> hosts = distinct_hosts(names, mpi.gather(hardware.host));
  std::vector<MeasuredPair> mine;
  for (MeasuredPair& pair : pairs_to_measure(hosts, max_pairs)) {
    mpi.barrier();  // one pair at a time; the other ranks sleep
    if (mpi.rank() != pair.first && mpi.rank() != pair.second) continue;
    pair.pings = ping(mpi, pair);
    if (mpi.rank() == pair.first) mine.push_back(pair);
  }
  std::vector<MeasuredPair> pairs;
  for (const std::vector<MeasuredPair>& of_rank : gather_all(mpi, mine))
    pairs.insert(pairs.end(), of_rank.begin(), of_rank.end());
  return agree(mpi, [&] { return links_of(hosts, pairs); });
}

}  // namespace starpipe::runtime
