// SPDX-License-Identifier: Apache-2.0
// The links of info.hpp.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
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
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeasuredPair, first, second, pings, both_ways, at_once)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SharedPort, rank, out, between_hosts, first, last)

namespace {

constexpr std::array<std::uint64_t, 8> sizes = {1,       1 << 10, 1 << 12, 1 << 14,
                                                1 << 16, 1 << 18, 1 << 20, 1 << 22};
constexpr double long_message = 0.05;  // seconds; no message is larger than the first one that takes longer
constexpr std::size_t max_pairs = 32;  // of a level
constexpr std::size_t max_pings = 3;   // pairs of a level that measure all sizes
constexpr double level_limit = 30;     // seconds, of a level and of a message
constexpr double half_duplex = 0.25;   // both directions are slower than one by more than this
constexpr double notable = 0.1;        // differences of more than this are told, and written

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
  PortBandwidths ports = port_bandwidths(pairs, between_hosts ? per_host : 1);
  // Cores, not ports, make the ranks of a host differ.
  if (!between_hosts) ports.others.clear();
  const auto is_other = [&](int rank) {
    return std::ranges::find(ports.others, rank / (between_hosts ? per_host : 1), &plan::LinkPort::member) !=
           ports.others.end();
  };
  std::vector<MeasuredPair> pinged;
  std::vector<MeasuredPair> alike;
  for (const MeasuredPair& pair : pairs) {
    if (pair.pings.empty()) continue;
    pinged.push_back(pair);
    if (!is_other(pair.first) && !is_other(pair.second)) alike.push_back(pair);
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
  const std::size_t last = pings.size() - 1;
  const double alone = (pings[last].time - pings[last - 1].time) /
                       static_cast<double>(pings[last].bytes - pings[last - 1].bytes);
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

// Messages of the measurement. Waits give up the core, since ranks may share it.
class Pinger {
 public:
  explicit Pinger(const Mpi& mpi) : mpi_(mpi), sent_(sizes.back()), received_(2 * sizes.back()) {}

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
  static int repetitions(double time) {
    constexpr double enough = 0.15;
    return std::clamp(static_cast<int>(enough / time), 2, 20);
  }

  // A port that has been idle may be faster for a while. Messages of a step come after pauses, too.
  static void rest(double after) {
    constexpr double min = 1e-3;
    constexpr double max = 20e-3;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(after, min, max)));
  }

  static constexpr int tag = 17;
  const Mpi& mpi_;
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
    std::stable_partition(alike.begin(), alike.end(), [&](int member) {
      return std::ranges::find(ports.others, member, &plan::LinkPort::member) == ports.others.end();
    });
  }
  if (members > 2) return {alike[2] * stride, {alike[0] * stride, alike[1] * stride}};
  return {0, {stride, between_hosts && per_host > 1 ? stride + 1 : stride}};
}

/// What this rank has measured.
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

/// Measures a level. Collective.
void measure_level(const Mpi& mpi, Pinger& pinger, std::vector<MeasuredPair> pairs, int per_host,
                   Measured& measured) {
  if (pairs.empty()) return;
  const bool between_hosts = pairs.front().first / per_host != pairs.front().second / per_host;
  const std::string_view name = between_hosts ? "network" : "node";
  const double end = clock_seconds() + level_limit;
  const auto in_time = [&](double part) {
    return mpi.share_value(end - clock_seconds() > (1 - part) * level_limit, 0);
  };
  std::uint64_t bytes = 0;
  std::vector<MeasuredPair> mine;
  std::map<int, double> alone;  // by the second rank: the time of both_ways
  for (std::size_t i = 0; i < pairs.size() && in_time(0.6); ++i) {
    mpi.show(fmt::format("links of the {}: pair {} of {}", name, i + 1, pairs.size()));
    MeasuredPair& pair = pairs[i];
    const bool here = mpi.rank() == pair.first || mpi.rank() == pair.second;
    if (here && i < max_pings) pair.pings = ping(pinger, pair);
    if (i == 0) bytes = mpi.share_value(here ? pair.pings.back().bytes : 0, pair.first);
    if (!here) continue;
    const double whole = both_ways(pinger, pair, bytes);
    const double quarter = both_ways(pinger, pair, bytes / 4);
    // The difference leaves out the latency, and what an idle port does faster.
    pair.both_ways = std::max(whole - quarter, whole / 4) / (static_cast<double>(bytes) * 0.75);
    if (mpi.rank() != pair.first) continue;
    alone[pair.second] = whole;
    mine.push_back(pair);
  }
  const std::vector<MeasuredPair> done = of_all_ranks(mpi, mine);
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
      const auto own = std::ranges::find(mine, pair.second, &MeasuredPair::second);
      if (own != mine.end()) own->at_once = time / alone[pair.second];
    }
  }
  measured.pairs.insert(measured.pairs.end(), mine.begin(), mine.end());
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

plan::Link link_of(std::span<const Ping> pings, double beta) {
  const Ping& last = pings.back();
  const Ping& before = pings[pings.size() - 2];
  const double alone = (last.time - before.time) / static_cast<double>(last.bytes - before.bytes);
  const bool slower = alone > 0 && beta > (1 + half_duplex) * alone;
  plan::Link line = fitted_link(pings);
  if (largest_deviation(line, pings) <= notable) return slower ? line.slowed(beta / alone) : line;
  plan::Link table{.alpha = last.time, .beta = slower || alone <= 0 ? beta : std::min(alone, beta)};
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

MeasuredLinks measure_links(const Mpi& mpi) {
  const Hardware hardware = find_hardware();
  const std::vector<std::string> names = mpi.gather(hardware.machine);
  const std::vector<std::string> hosts = distinct_hosts(names, mpi.gather(hardware.host));
  const int per_host = ranks_per_host(hosts);
  Pinger pinger(mpi);
  Measured measured;
  for (const std::vector<MeasuredPair>& level : by_level(pairs_to_measure(hosts, max_pairs), per_host))
    measure_level(mpi, pinger, level, per_host, measured);
  const std::vector<MeasuredPair> pairs = of_all_ranks(mpi, measured.pairs);
  const std::vector<SharedPort> ports = of_all_ranks(mpi, measured.ports);
  return agree(mpi, [&] { return links_of(hosts, pairs, ports); });
}

}  // namespace starpipe::runtime
