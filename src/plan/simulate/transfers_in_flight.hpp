// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

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

}  // namespace starpipe::plan
