// SPDX-License-Identifier: Apache-2.0
// The links between ranks, for `starpipe info --links`: their measurement by messages (link_messages.cpp),
// and what follows from it (measured_links.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::runtime {

class Mpi;

/// The shortest time, in seconds, of a message of `bytes` from one rank to another.
struct Ping {
  std::uint64_t bytes = 0;
  double time = 0;
};

/// Times of messages between two ranks.
struct MeasuredPair {
  int first = 0;  ///< rank
  int second = 0;
  /// Of several sizes, one message at a time; empty if only the next was measured.
  std::vector<Ping> pings = {};
  double both_ways = 0;  ///< seconds per byte and direction, while both directions carry data
  double at_once = 0;    ///< how many times as long it takes while other pairs do so, too; 0: not measured
};

/// Two messages that leave one rank, or arrive there, at once.
struct SharedPort {
  int rank = 0;
  bool out = false;
  bool between_hosts = false;
  double first = 0;  ///< when the first one has arrived, relative to the time of a message that is alone
  double last = 0;
};

/// Returns the link whose times deviate least from the measured ones: the sum of the squares of relative
/// deviations is the smallest, so that small messages count as much as large ones. Both of its parts are at
/// least 0. `pings`: at least two sizes, all times above 0.
plan::Link fitted_link(std::span<const Ping> pings);

/// Returns `fitted_link`, or a table where that is off by more than 10 %. `beta`: seconds per byte while both
/// directions carry data. If one message alone is faster by more than 25 %, all times but the latency grow in
/// proportion. `pings`: ascending.
plan::Link link_of(std::span<const Ping> pings, double beta);

/// Returns how transfers share a port, by the clearest of these measurements. There is at least one.
plan::Sharing sharing_of(std::span<const SharedPort> ports);

/// The bandwidths of the ports of a level.
struct PortBandwidths {
  double beta = 0;                          ///< of most of them
  std::vector<plan::LinkPort> others = {};  ///< those off by more than 10 %

  [[nodiscard]] bool is_other(int member) const {
    return std::ranges::find(others, member, &plan::LinkPort::member) != others.end();
  }
};

/// Returns the bandwidth of each port from pairs that meet there: a pair is as fast as its slower port, so a
/// port is as fast as its fastest pair. Not for an empty list.
PortBandwidths port_bandwidths(std::span<const MeasuredPair> pairs, int ranks_per_member);

/// Returns the largest relative deviation of the link's times from the measured ones.
double largest_deviation(const plan::Link& link, std::span<const Ping> pings);

/// The seconds that the measurement of a level, or a message, takes at most.
inline constexpr double level_limit = 30;

/// Returns the number of ranks on each host. Throws InputError as `links_of` does for ranks that make no
/// levels.
int ranks_per_host(std::span<const std::string> hosts);

/// Divides pairs of ranks into pairs on one host and pairs between hosts.
std::array<std::vector<MeasuredPair>, 2> by_level(std::span<const MeasuredPair> pairs, int per_host);

/// Links between ranks, each with one worker.
struct MeasuredLinks {
  plan::Links links;
  std::vector<std::string> notes;  ///< lines for people: what was measured, and how well the links fit
};

/// Returns the name of each rank's host. If two hosts have one name, their ids (Hardware::host) follow it.
std::vector<std::string> distinct_hosts(const std::vector<std::string>& names,
                                        const std::vector<std::string>& ids);

/// Returns the levels of pairs of ranks: a node for ranks of one host, and a network between hosts. `hosts`:
/// the name of each rank's host. Throws InputError unless there are two ranks or more, the ranks of each host
/// are consecutive, and all hosts have as many; and for a level that was not measured completely: no pair has
/// pings, or no port was shared.
MeasuredLinks links_of(std::span<const std::string> hosts, std::span<const MeasuredPair> pairs,
                       std::span<const SharedPort> ports);

/// Returns the pairs of ranks to measure: up to `max` on one host and `max` between hosts. Neighbours, and
/// the last one with the first, so that each rank of a host and each host is in two pairs as far as `max`
/// allows. Throws InputError as `links_of` does.
std::vector<MeasuredPair> pairs_to_measure(std::span<const std::string> hosts, std::size_t max);

/// Measures the links between the ranks, within 30 seconds for each level: messages of several sizes between
/// pairs, both directions at once, two messages through one port, several pairs at once. Collective. Throws
/// InputError on every rank for ranks that make no levels, and as `links_of` does. Ends the job if a message
/// does not arrive within 30 seconds.
MeasuredLinks measure_links(const Mpi& mpi);

}  // namespace starpipe::runtime
