// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/simulate/copies_in_flight.hpp"
#include "plan/simulate/fetches.hpp"
#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// The transfers of a step where transfers may delay each other. Each datum is sent once to each worker that
/// reads it; with prefetch, once to each other rank, whose workers share the copy. Transfers that are asked
/// for at the same time begin in the order of n of the jobs that read them. With Costs::relays, weights go by
/// relay_plan: a rank passes a segment on when it has arrived. Segments that leave at the same time begin in
/// the order in which jobs need their weights. With Costs::messages_pass_hosts a message between ranks has a
/// way in three parts: to the sender's host, to the receiver's host, and to the receiver. A datum that goes
/// to several ranks passes the sender's host once.
class SharedTransfers {
 public:
  /// The references must outlive this, as must `hosts`, which may be null unless messages pass hosts.
  SharedTransfers(const Schedule& schedule, const Costs& costs, const Fetches& fetches,
                  CopiesInFlight* hosts);

  /// With prefetch: asks for all transfers of weights, or of the results of `producer`. Transfers that take
  /// no time arrive at once. Adds the jobs whose last missing input has arrived to `complete`.
  void send_weights(std::vector<JobId>& complete) {
    send(weights_, complete);
    for (const std::uint32_t segment : first_segments_) ask_for_segment(segment);
  }
  void send_results(JobId producer, std::vector<JobId>& complete) { send(results_[producer], complete); }
  /// With prefetch: true if all inputs of `id` from other workers have arrived.
  [[nodiscard]] bool is_complete(JobId id) const { return missing_[id] == 0; }

  /// Without prefetch: asks for the next input of `id` that its worker lacks. Returns false if it lacks none.
  bool fetch_next(JobId id);

  /// Begins, at `now`, the transfers that were asked for.
  void begin(double now);
  /// Begins a transfer on the same links that is no input of a job. `number`: the caller's.
  void begin_other(double now, int from, int to, std::uint64_t bytes, std::uint32_t number) {
    begin_way(now, {from, to, bytes},
              static_cast<std::uint32_t>(transfers_.size() + segments_.size()) + number);
  }
  [[nodiscard]] double next() const { return in_flight_.next(); }
  /// Advances to `now`. Adds to `complete`: with prefetch, the jobs whose last missing input has
  /// arrived; without prefetch, each job that asked for a transfer that has arrived. Adds to `others` the
  /// numbers of other transfers that have arrived.
  void advance(double now, std::vector<JobId>& complete, std::vector<std::uint32_t>& others);
  /// Continues the way of the messages that have passed a host at `now`: CopiesInFlight gave their numbers.
  /// Adds as `advance` does.
  void passed_hosts(double now, std::span<const std::uint32_t> messages, std::vector<JobId>& complete,
                    std::vector<std::uint32_t>& others);

 private:
  struct Transfer {
    int from;
    int to;
    std::uint64_t bytes;
    std::vector<JobId> readers;               // by turn
    std::optional<std::uint64_t> datum = {};  // nullopt: has one reader
    bool asked_for = false;                   // without prefetch
    std::uint32_t segments = 0;               // with relays: how many have not arrived yet
  };
  /// A segment of relayed weights, on its way to a rank.
  struct Segment {
    int from = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    std::uint32_t turn = 0;                // of the first job that reads the weights
    std::uint32_t transfer = 0;            // that it is a part of
    std::vector<std::uint32_t> next = {};  // segments that the receiver sends then
  };

  /// A message between ranks, on its way through their hosts.
  struct Message {
    int from = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    bool is_at_receiver = false;  // has passed the network
  };
  /// A datum on its way to its worker's host, or there.
  struct HostCopy {
    bool is_there = false;
    std::vector<std::uint32_t> waiting = {};  // messages
  };

  [[nodiscard]] bool passes_hosts(int from, int to) const {
    return costs_.has_slow_hosts() && from / costs_.workers_of_rank != to / costs_.workers_of_rank;
  }
  [[nodiscard]] bool takes_time(const Transfer& transfer) const {
    return passes_hosts(transfer.from, transfer.to) ||
           costs_.link(transfer.from, transfer.to).time(transfer.bytes) > 0;
  }
  [[nodiscard]] HostCopy* host_copy(std::uint32_t number);
  void begin_way(double now, const Message& message, std::uint32_t number);
  void cross_network(double now, std::uint32_t number);
  void deliver(std::uint32_t number, std::vector<JobId>& complete, std::vector<std::uint32_t>& others);
  void send(const std::vector<std::uint32_t>& transfers, std::vector<JobId>& complete);
  void arrive(std::uint32_t transfer, std::vector<JobId>& complete);
  void add_relays(const Fetches& fetches, const std::map<std::tuple<int, int, int>, std::uint32_t>& of_rank);
  void ask_for_segment(std::uint32_t segment);
  void arrive_segment(std::uint32_t segment, std::vector<JobId>& complete);

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> weights_;               // transfers of weights, without relays
  std::vector<Segment> segments_;                    // in the order in which they are needed
  std::vector<std::uint32_t> first_segments_;        // segments that leave the holders
  std::vector<std::vector<std::uint32_t>> results_;  // transfers by JobId of the producer
  std::vector<std::vector<std::uint32_t>> inputs_;   // transfers by JobId of the reader
  std::vector<std::uint32_t> missing_;               // by JobId: inputs that have not arrived
  // Requests since the last `begin`: the turn of the job that reads the transfer, and the transfer's index.
  std::set<std::pair<std::uint32_t, std::uint32_t>> requests_;
  std::vector<std::uint32_t> arrived_;
  TransfersInFlight in_flight_;
  CopiesInFlight* hosts_;
  std::unordered_map<std::uint32_t, Message> messages_;   // by number: on their way through hosts
  std::unordered_map<std::uint64_t, HostCopy> at_hosts_;  // by datum
};

}  // namespace starpipe::plan
