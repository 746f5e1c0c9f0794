// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/report/measured_links.hpp"

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ping, bytes, time)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeasuredPair, first, second, pings, both_ways, at_once)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SharedPort, rank, out, between_hosts, first, last)

namespace {

constexpr std::array<std::uint64_t, 8> sizes = {1,       1 << 10, 1 << 12, 1 << 14,
                                                1 << 16, 1 << 18, 1 << 20, 1 << 22};
constexpr double long_message = 0.05;  // seconds; no message is larger than the first one that takes longer
constexpr std::size_t max_pairs = 32;  // of a level
constexpr std::size_t max_pings = 3;   // pairs of a level that measure all sizes

// Messages of the measurement. Waits give up the core, since ranks may share it.
class Pinger {
 public:
  /// `enough`: the seconds that the repetitions of a message may take together.
  Pinger(const Mpi& mpi, double enough)
      : mpi_(mpi), enough_(enough), sent_(sizes.back()), received_(2 * sizes.back()) {}

  [[nodiscard]] int rank() const { return mpi_.rank(); }
  void send(std::uint64_t bytes, int to) {
    MPI_Isend(sent_.data(), static_cast<int>(bytes), MPI_BYTE, to, tag, mpi_.comm(),
              &requests_.emplace_back());
    others_.push_back(to);
  }
  /// At most two at once.
  void receive(std::uint64_t bytes, int from) {
    char* const place = received_.data() + (receives_++ % 2) * sizes.back();
    MPI_Irecv(place, static_cast<int>(bytes), MPI_BYTE, from, tag, mpi_.comm(), &requests_.emplace_back());
    others_.push_back(from);
  }
  /// Waits for all messages since the last call. Returns when each was complete, in the order of the calls.
  /// `answer`: sends a byte to the other rank when a message is complete.
  std::vector<double> finish(bool answer = false) {
    const double begin = clock_seconds();
    std::vector<double> ends(requests_.size());
    for (std::size_t left = ends.size(); left > 0; std::this_thread::yield()) {
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (requests_[i] == MPI_REQUEST_NULL) continue;
        int done = 0;
        MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
        if (done == 0) continue;
        ends[i] = clock_seconds();
        if (answer) MPI_Send(sent_.data(), 1, MPI_BYTE, others_[i], tag, mpi_.comm());
        --left;
      }
      if (clock_seconds() - begin < level_limit) continue;
      mpi_.abort(fmt::format("--links: messages between rank {} and {} have not arrived within {:g} s",
                             mpi_.rank(), fmt::join(others_, ", "), level_limit));
    }
    requests_.clear();
    others_.clear();
    receives_ = 0;
    return ends;
  }

  /// Runs `round` on some ranks, as often as the first one, the leader, decides by the time that `round`
  /// returns there. Returns the shortest time on the leader.
  template <class Round>
  double shortest(std::span<const int> ranks, const Round& round) {
    double best = std::numeric_limits<double>::infinity();
    for (int left = 1;;) {
      if (rank() == ranks.front()) rest(best);
      if (!agreed(ranks, left > 0)) return best;
      const double time = std::max(round(), 1e-9);
      left = std::isinf(best) ? repetitions(time) : left - 1;
      best = std::min(best, time);
    }
  }

  /// Returns the leader's answer on all of these ranks.
  bool agreed(std::span<const int> ranks, bool mine) {
    char answer = mine ? 1 : 0;
    for (const int other : ranks.subspan(1)) {
      if (rank() == ranks.front()) {
        MPI_Send(&answer, 1, MPI_CHAR, other, tag, mpi_.comm());
      } else if (rank() == other) {
        receive(1, ranks.front());
        finish();
        answer = received_.front();
      }
    }
    return answer != 0;
  }

 private:
  // The first time sets up buffers.
  [[nodiscard]] int repetitions(double time) const {
    return std::clamp(static_cast<int>(enough_ / time), 2, 20);
  }

  // A port that has been idle may be faster for a while. Messages of a step come after pauses, too.
  static void rest(double after) {
    constexpr double min = 1e-3;
    constexpr double max = 20e-3;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(after, min, max)));
  }

  static constexpr int tag = 17;
  const Mpi& mpi_;
  double enough_;
  std::vector<char> sent_;
  std::vector<char> received_;
  std::vector<MPI_Request> requests_;
  std::vector<int> others_;
  std::size_t receives_ = 0;  // among `requests_`
};

/// On the two ranks of a pair. Returns half of the shortest round trip of each size, on the first rank.
std::vector<Ping> ping(Pinger& pinger, const MeasuredPair& pair) {
  const std::array ranks = {pair.first, pair.second};
  const bool leads = pinger.rank() == pair.first;
  std::vector<Ping> pings;
  for (const std::uint64_t bytes : sizes) {
    const double time = pinger.shortest(ranks, [&] {
      const double start = clock_seconds();
      for (const bool sends : {leads, !leads}) {
        if (sends) pinger.send(bytes, leads ? pair.second : pair.first);
        if (!sends) pinger.receive(bytes, leads ? pair.second : pair.first);
        pinger.finish();
      }
      return (clock_seconds() - start) / 2;
    });
    pings.push_back({bytes, time});
    if (pinger.agreed(ranks, pings.size() > 1 && time > long_message)) break;
  }
  return pings;
}

/// On the two ranks of a pair: messages of so many bytes in both directions at once. Returns the shortest
/// time until both have arrived, on the first rank.
double both_ways(Pinger& pinger, const MeasuredPair& pair, std::uint64_t bytes) {
  const bool leads = pinger.rank() == pair.first;
  const int other = leads ? pair.second : pair.first;
  return pinger.shortest(std::array{pair.first, pair.second}, [&] {
    const double start = clock_seconds();
    pinger.receive(bytes, other);
    pinger.send(bytes, other);
    pinger.finish();
    if (leads) pinger.receive(1, other);
    if (!leads) pinger.send(1, other);
    pinger.finish();
    return clock_seconds() - start;
  });
}

/// On rank `center` and the others, which may be one rank twice: messages between it and each of the others
/// at once. Returns the arrivals of the first and of the last one, on `center`, where the last one is the
/// earliest.
std::pair<double, double> star(Pinger& pinger, int center, std::span<const int> others, bool out,
                               std::uint64_t bytes) {
  std::vector<int> ranks = {center};
  for (const int other : others) {
    if (ranks.back() != other) ranks.push_back(other);
  }
  std::pair<double, double> best = {0, std::numeric_limits<double>::infinity()};
  pinger.shortest(ranks, [&] {
    const double start = clock_seconds();
    if (pinger.rank() != center) {
      for (const int other : others) {
        if (other != pinger.rank()) continue;
        if (out) pinger.receive(bytes, center);
        if (!out) pinger.send(bytes, center);
      }
      pinger.finish(/*answer=*/out);
      return 0.0;
    }
    for (const int other : others) {
      pinger.receive(out ? 1 : bytes, other);
      if (out) pinger.send(bytes, other);
    }
    std::vector<double> arrivals = pinger.finish();
    if (out) {
      for (std::size_t i = 0; i < others.size(); ++i) arrivals[i] = arrivals[2 * i];
      arrivals.resize(others.size());
    }
    const auto [first, last] = std::ranges::minmax(arrivals);
    if (last - start < best.second) best = {first - start, last - start};
    return last - start;
  });
  return best;
}

/// Returns the pairs that have no rank of a member in common with an earlier one.
std::vector<MeasuredPair> disjoint(std::span<const MeasuredPair> pairs, int ranks_per_member) {
  std::vector<MeasuredPair> chosen;
  std::set<int> used;
  for (const MeasuredPair& pair : pairs) {
    const int a = pair.first / ranks_per_member;
    const int b = pair.second / ranks_per_member;
    if (used.contains(a) || used.contains(b)) continue;
    used.insert({a, b});
    chosen.push_back(pair);
  }
  return chosen;
}

/// A rank, and two others that its messages go to: of other members with equal ports, if there are such.
struct Star {
  int center = 0;
  std::array<int, 2> others = {};
};
Star choose_star(std::span<const MeasuredPair> pairs, int per_host, bool between_hosts, int ranks) {
  const int stride = between_hosts ? per_host : 1;
  const int members = between_hosts ? ranks / per_host : per_host;
  std::vector<int> alike;
  for (int member = 0; member < members; ++member) alike.push_back(member);
  if (between_hosts) {
    const PortBandwidths ports = port_bandwidths(pairs, stride);
    // A center among the others does no harm: all its messages pass its port.
    std::stable_partition(alike.begin(), alike.end(), [&](int member) { return !ports.is_other(member); });
  }
  if (members > 2) return {alike[2] * stride, {alike[0] * stride, alike[1] * stride}};
  return {0, {stride, between_hosts && per_host > 1 ? stride + 1 : stride}};
}

/// The shortest times of `both_ways` for a pair.
struct BothWays {
  double whole = std::numeric_limits<double>::infinity();
  double quarter = std::numeric_limits<double>::infinity();  ///< with a quarter of the bytes
};

/// The pairs of a level whose first rank is this one.
struct OwnPairs {
  std::vector<MeasuredPair> pairs;
  std::map<int, BothWays> alone;  ///< by the second rank
};

/// Holds what one rank has measured.
struct Measured {
  std::vector<MeasuredPair> pairs;
  std::vector<SharedPort> ports;
};

template <class Value>
std::vector<Value> of_all_ranks(const Mpi& mpi, const std::vector<Value>& mine) {
  std::vector<Value> all;
  for (const std::vector<Value>& of_rank : gather_all(mpi, mine))
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  return all;
}

/// On the two ranks of a pair. Measures both directions at once, with messages of so many bytes and of a
/// quarter. The first rank keeps the shortest times of all calls.
void measure_both_ways(Pinger& pinger, const MeasuredPair& pair, std::uint64_t bytes, OwnPairs& own) {
  const double whole = both_ways(pinger, pair, bytes);
  const double quarter = both_ways(pinger, pair, bytes / 4);
  if (pinger.rank() != pair.first) return;
  BothWays& alone = own.alone[pair.second];
  alone = {std::min(alone.whole, whole), std::min(alone.quarter, quarter)};
  auto found = std::ranges::find(own.pairs, pair.second, &MeasuredPair::second);
  if (found == own.pairs.end()) found = own.pairs.insert(found, pair);
  // The difference leaves out the latency, and what an idle port does faster.
  found->both_ways =
      std::max(alone.whole - alone.quarter, alone.whole / 4) / (static_cast<double>(bytes) * 0.75);
}

/// Collective. Measures pairs whose ports differ from the others again, for as long as `in_time` and in three
/// rounds at most: busy cores make a pair slow for a while, a port makes it slow each time. Returns the pairs
/// of all ranks.
std::vector<MeasuredPair> measure_ports_again(const Mpi& mpi, Pinger& pinger, std::uint64_t bytes,
                                              int per_host, OwnPairs& own,
                                              const std::function<bool()>& in_time) {
  std::vector<MeasuredPair> all = of_all_ranks(mpi, own.pairs);
  for (int round = 0; round < 3 && !all.empty(); ++round) {
    const PortBandwidths ports = port_bandwidths(all, per_host);
    if (ports.others.empty() || !in_time()) break;
    mpi.show("links of the network: ports that differ, again");
    for (const MeasuredPair& pair : all) {
      if (!ports.is_other(pair.first / per_host) && !ports.is_other(pair.second / per_host)) continue;
      mpi.barrier();  // see measure_level
      if (mpi.rank() == pair.first || mpi.rank() == pair.second) measure_both_ways(pinger, pair, bytes, own);
    }
    all = of_all_ranks(mpi, own.pairs);
  }
  return all;
}

/// Measures a level. Collective. Before each measurement is a barrier, in which ranks without a part in the
/// one before sleep: past it they would poll, and take cores from others.
void measure_level(const Mpi& mpi, std::vector<MeasuredPair> pairs, int per_host, Measured& measured) {
  if (pairs.empty()) return;
  const bool between_hosts = pairs.front().first / per_host != pairs.front().second / per_host;
  const std::string_view name = between_hosts ? "network" : "node";
  const double end = clock_seconds() + level_limit;
  const auto in_time = [&](double part) {
    mpi.barrier();
    return mpi.share_value(end - clock_seconds() > (1 - part) * level_limit, 0);
  };
  constexpr double for_pairs = 0.6;  // of the limit
  // A pair takes about six times as long as the repetitions of one message.
  Pinger pinger(mpi, std::clamp(for_pairs * level_limit / static_cast<double>(6 * pairs.size()), 0.1, 0.3));
  std::uint64_t bytes = 0;
  OwnPairs own;
  for (std::size_t i = 0; i < pairs.size() && in_time(for_pairs); ++i) {
    mpi.show(fmt::format("links of the {}: pair {} of {}", name, i + 1, pairs.size()));
    MeasuredPair& pair = pairs[i];
    const bool here = mpi.rank() == pair.first || mpi.rank() == pair.second;
    if (here && i < max_pings) pair.pings = ping(pinger, pair);
    if (i == 0) bytes = mpi.share_value(here ? pair.pings.back().bytes : 0, pair.first);
    if (here) measure_both_ways(pinger, pair, bytes, own);
  }
  const std::vector<MeasuredPair> done =
      between_hosts ? measure_ports_again(mpi, pinger, bytes, per_host, own, [&] { return in_time(0.7); })
                    : of_all_ranks(mpi, own.pairs);
  if (done.empty()) return;
  const Star chosen = choose_star(done, per_host, between_hosts, mpi.ranks());
  for (const bool out : {true, false}) {
    if (!in_time(0.8)) break;
    mpi.show(fmt::format("links of the {}: two messages at once", name));
    if (mpi.rank() != chosen.center && std::ranges::find(chosen.others, mpi.rank()) == chosen.others.end())
      continue;
    const auto one = std::span(chosen.others).first(1);
    double single = 0;
    if (mpi.rank() == chosen.center || mpi.rank() == one.front())
      single = star(pinger, chosen.center, one, out, bytes).second;
    const auto [first, last] = star(pinger, chosen.center, chosen.others, out, bytes);
    if (mpi.rank() == chosen.center)
      measured.ports.push_back({mpi.rank(), out, between_hosts, first / single, last / single});
  }
  const std::vector<MeasuredPair> together = disjoint(done, between_hosts ? per_host : 1);
  if (together.size() > 1 && in_time(0.9)) {
    mpi.show(fmt::format("links of the {}: {} pairs at once", name, together.size()));
    mpi.barrier();
    for (const MeasuredPair& pair : together) {
      if (mpi.rank() != pair.first && mpi.rank() != pair.second) continue;
      const double time = both_ways(pinger, pair, bytes);
      const auto found = std::ranges::find(own.pairs, pair.second, &MeasuredPair::second);
      if (found != own.pairs.end()) found->at_once = time / own.alone[pair.second].whole;
    }
  }
  measured.pairs.insert(measured.pairs.end(), own.pairs.begin(), own.pairs.end());
}

}  // namespace

MeasuredLinks measure_links(const Mpi& mpi) {
  const Hardware hardware = find_hardware();
  const std::vector<std::string> names = mpi.gather(hardware.machine);
  const std::vector<std::string> hosts = distinct_hosts(names, mpi.gather(hardware.host));
  const int per_host = ranks_per_host(hosts);
  Measured measured;
  for (const std::vector<MeasuredPair>& level : by_level(pairs_to_measure(hosts, max_pairs), per_host))
    measure_level(mpi, level, per_host, measured);
  const std::vector<MeasuredPair> pairs = of_all_ranks(mpi, measured.pairs);
  const std::vector<SharedPort> ports = of_all_ranks(mpi, measured.ports);
  return agree(mpi, [&] { return links_of(hosts, pairs, ports); });
}

}  // namespace starpipe::runtime
