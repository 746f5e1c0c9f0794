// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/host/mpi.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::runtime {

/// The shortest time, in seconds, of a message of `bytes` from one rank to another.
struct Ping {
  std::uint64_t bytes = 0;
  double time = 0;
};

/// Times of messages between two ranks.
struct MeasuredPair {
  int first = 0;  ///< rank
  int second = 0;
  std::vector<Ping> pings;  ///< of several sizes
};

/// Returns the link whose times deviate least from the measured ones: the sum of the squares of relative
/// deviations is the smallest, so that small messages count as much as large ones. Both of its parts are at
/// least 0. `pings`: at least two sizes, all times above 0.
plan::Link fitted_link(std::span<const Ping> pings);

/// Returns the largest relative deviation of the link's times from the measured ones.
double largest_deviation(const plan::Link& link, std::span<const Ping> pings);

/// Links between ranks, each with one worker.
struct MeasuredLinks {
  plan::Links links;
  std::vector<std::string> notes;  ///< lines for people: what was measured, and how well the links fit
};

/// Returns the name of each rank's host. If two hosts have one name, their ids (Hardware::host) follow it.
std::vector<std::string> distinct_hosts(const std::vector<std::string>& names,
                                        const std::vector<std::string>& ids);

/// Returns the levels of pairs of ranks: a node for ranks of one host, and a network between hosts. `hosts`:
/// the name of each rank's host. A level's alpha and beta are medians over its pairs. Throws InputError
/// unless there are two ranks or more, the ranks of each host are consecutive, and all hosts have as many.
MeasuredLinks links_of(std::span<const std::string> hosts, std::span<const MeasuredPair> pairs);

/// Returns the pairs of ranks to measure: up to `max` on one host and `max` between hosts, spread over all.
/// Throws InputError as `links_of` does.
std::vector<MeasuredPair> pairs_to_measure(std::span<const std::string> hosts, std::size_t max);

/// Measures the links between the ranks by pings of several sizes, one pair of ranks at a time. Collective.
/// Throws InputError on every rank for ranks that make no levels.
MeasuredLinks measure_links(const Mpi& mpi);

}  // namespace starpipe::runtime
