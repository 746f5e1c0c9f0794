// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/simulate/fetches.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::plan {

/// The transfers under way on links that they may share.
///
/// A transfer first takes the latency, alpha. Then its bytes pass two ports, out of the sender and into the
/// receiver, at the level between the two: for beta * bytes if nothing else uses these ports. The level's
/// Sharing says how transfers delay each other. `none`: not at all. `in_order`: a transfer waits until both
/// ports have finished every transfer that began before it, then has both to itself. `fair`: the rates of the
/// transfers under way are max-min fair at every time (Bertsekas and Gallager, Data Networks, section 6.5.2),
/// the fluid model of SimGrid and other flow-level simulators. Progressive filling computes the rates, only
/// for transfers that the change can reach.
///
/// From a worker to another worker of its rank only one transfer is under way at a time, in the order of the
/// calls of `begin`, on links of any kind: a StarPU process has one CUDA stream for each pair of its GPUs. A
/// transfer that takes no time does not wait.
///
/// With `ordered_messages` each pair of ranks has a connection for each direction. On fair links it passes
/// the bytes of one transfer at a time, in the order in which the latencies of its transfers end. Connections
/// share the ports.
///
/// A port may have another bandwidth than its level (LinkLevel::ports). In order, a transfer then occupies
/// both ports for as long as the slower one takes.
///
/// An undelayed transfer arrives after exactly `Link::time(bytes)`. Times have the unit of the links.
/// Deterministic. Not thread-safe.
class TransfersInFlight {
 public:
  static constexpr double never = std::numeric_limits<double>::infinity();

  /// `links` must outlive this. `workers_of_rank`, `ordered_messages`: see Costs.
  explicit TransfersInFlight(const Links& links, int workers_of_rank = 1, bool ordered_messages = false)
      : links_(links), workers_of_rank_(workers_of_rank), ordered_messages_(ordered_messages) {}

  /// Begins a transfer between two different workers at `now`, which must not be before the time of an
  /// earlier call. Transfers of equal `now` are served in the order of the calls. `number`: the caller's
  /// number of the transfer, which `advance` gives back.
  void begin(double now, int from, int to, std::uint64_t bytes, std::uint32_t number);

  /// Returns the time of the next event: a transfer arrives, or its bytes begin to use its ports; `never`
  /// when no transfer is under way.
  [[nodiscard]] double next() const;

  /// Advances to `now`: handles all events up to this time, in order of time. Adds the numbers of the
  /// transfers that have arrived to `arrived`.
  void advance(double now, std::vector<std::uint32_t>& arrived);

 private:
  /// The transfers from one worker to another of the same rank, or the messages from one rank to another: one
  /// is under way, the others wait.
  struct Stream {
    bool busy = false;
    std::deque<std::uint32_t> waiting = {};
  };
  /// A transfer that has begun and not arrived.
  struct Transfer {
    int from = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    std::uint32_t number = 0;  ///< the caller's
    Stream* stream = nullptr;  ///< null between ranks
    // With fair sharing:
    Stream* connection = nullptr;  ///< with ordered messages, between ranks
    std::size_t out = 0;           ///< its two ports
    std::size_t in = 0;
    double alone = 1;  ///< its rate if nothing delays it
    double left = 0;   ///< time that the bytes left at `since` need with the level's bandwidth
    double since = 0;
    double rate = 0;              ///< share of the level's bandwidth since then
    double undelayed = 0;         ///< when it arrives if nothing ever delays it
    std::uint64_t end_event = 0;  ///< Event::order of its end at this rate; ends at former rates are void
    bool filled = false;          ///< has its new rate, during progressive filling
  };
  struct Port {
    double capacity = 1;                    ///< its bandwidth, relative to the level's
    double free_at = 0;                     ///< in order: when all transfers that began have passed
    std::vector<std::uint32_t> users = {};  ///< fair: the transfers that use it, ascending
    // During progressive filling:
    double left = 1;           ///< part of the capacity that no transfer has yet
    std::size_t unfilled = 0;  ///< transfers that have no new rate yet
    bool reached = false;
  };
  struct Event {
    enum class Kind : std::uint8_t { arrival, ports_begin, ports_end };
    double time;
    std::uint64_t order;  ///< among events of one time
    Kind kind;
    std::uint32_t transfer;  ///< index in `transfers_`
    friend auto operator<=>(const Event&, const Event&) = default;
  };

  // `entry`: index in `transfers_`.
  void start(double now, std::uint32_t entry);
  void arrive(std::uint32_t entry, double now, std::vector<std::uint32_t>& arrived);
  std::uint64_t push(double time, Event::Kind kind, std::uint32_t entry);
  [[nodiscard]] bool is_void(const Event& event) const;
  void handle(const Event& event, std::vector<std::uint32_t>& arrived);
  void pass_ports(std::uint32_t entry);
  void leave_ports(std::uint32_t entry, double now);
  std::size_t port_of(std::size_t level, int worker, bool out);
  void reach_ports();
  void change_rates(double now);
  void set_rate(std::uint32_t entry, double rate, double now);

  const Links& links_;
  int workers_of_rank_;
  bool ordered_messages_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> unused_;                  // entries of transfers_ whose transfers have arrived
  std::map<std::pair<int, int>, Stream> streams_;      // by sender and receiver
  std::map<std::pair<int, int>, Stream> connections_;  // by the ranks of sender and receiver
  std::map<std::tuple<std::size_t, int, bool>, std::size_t> port_numbers_;  // by level, member, direction
  std::vector<Port> ports_;
  std::vector<std::size_t> changed_;  // ports that a transfer began or ceased to use
  std::vector<std::size_t> reached_;  // ports whose users may change their rates when `changed_` do
  std::uint64_t pushed_ = 0;          // number of events ever
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

/// The transfers of a step where transfers may delay each other. Each datum is sent once to each worker that
/// reads it; with prefetch, once to each other rank, whose workers share the copy. Transfers that are asked
/// for at the same time begin in the order of n of the jobs that read them. With Costs::relays, weights go by
/// relay_plan: a rank passes a slice on when it has arrived. Slices that leave at the same time begin in the
/// order in which jobs need their weights.
class SharedTransfers {
 public:
  /// The references must outlive this.
  SharedTransfers(const Schedule& schedule, const Costs& costs, const Fetches& fetches);

  /// With prefetch: asks for all transfers of weights, or of the results of `producer`. Transfers that take
  /// no time arrive at once. Adds the jobs whose last missing input has arrived to `complete`.
  void send_weights(std::vector<JobId>& complete) {
    send(weights_, complete);
    for (const std::uint32_t slice : first_slices_) ask_for_slice(slice);
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
    in_flight_.begin(now, from, to, bytes,
                     static_cast<std::uint32_t>(transfers_.size() + slices_.size()) + number);
  }
  [[nodiscard]] double next() const { return in_flight_.next(); }
  /// Advances to `now`. Adds to `complete`: with prefetch, the jobs whose last missing input has
  /// arrived; without prefetch, each job that asked for a transfer that has arrived. Adds to `others` the
  /// numbers of other transfers that have arrived.
  void advance(double now, std::vector<JobId>& complete, std::vector<std::uint32_t>& others);

 private:
  struct Transfer {
    int from;
    int to;
    std::uint64_t bytes;
    std::vector<JobId> readers;  // by turn
    bool asked_for = false;      // without prefetch
    std::uint32_t slices = 0;    // by relays: those that have not arrived
  };
  /// A slice of relayed weights, on its way to a rank.
  struct Slice {
    int from = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    std::uint32_t turn = 0;                // of the first job that reads the weights
    std::uint32_t transfer = 0;            // that it is a part of
    std::vector<std::uint32_t> next = {};  // slices that the receiver sends then
  };

  [[nodiscard]] double time(const Transfer& transfer) const {
    return costs_.link(transfer.from, transfer.to).time(transfer.bytes);
  }
  void send(const std::vector<std::uint32_t>& transfers, std::vector<JobId>& complete);
  void arrive(std::uint32_t transfer, std::vector<JobId>& complete);
  void add_relays(const Fetches& fetches, const std::map<std::tuple<int, int, int>, std::uint32_t>& of_rank);
  void ask_for_slice(std::uint32_t slice);
  void arrive_slice(std::uint32_t slice, std::vector<JobId>& complete);

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> weights_;               // transfers of weights, without relays
  std::vector<Slice> slices_;                        // in the order in which they are needed
  std::vector<std::uint32_t> first_slices_;          // those that the holders send
  std::vector<std::vector<std::uint32_t>> results_;  // transfers by JobId of the producer
  std::vector<std::vector<std::uint32_t>> inputs_;   // transfers by JobId of the reader
  std::vector<std::uint32_t> missing_;               // by JobId: inputs that have not arrived
  // Transfers that were asked for since the last `begin`: the turn of the job that reads it, and its index.
  std::set<std::pair<std::uint32_t, std::uint32_t>> requests_;
  std::vector<std::uint32_t> arrived_;
  TransfersInFlight in_flight_;
};

}  // namespace starpipe::plan
