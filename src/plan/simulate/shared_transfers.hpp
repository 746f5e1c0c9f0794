// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/simulate/fetches.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "plan/simulate/transfers_in_flight.hpp"

namespace starpipe::plan::detail {

/// The transfers of a step where transfers may delay each other. Each datum is sent once to each worker that
/// reads it, or once to each rank of several workers. Transfers that are asked for at one time begin in the
/// order of the jobs that want them: of n.
class SharedTransfers {
 public:
  /// The references must outlive this.
  SharedTransfers(const Schedule& schedule, const Costs& costs, const Fetches& fetches);

  /// With prefetch: asks for all transfers of weights, or of the results of `producer`. Those that take no
  /// time arrive at once; jobs whose inputs are then all there are added to `complete`.
  void send_weights(std::vector<JobId>& complete) { send(weights_, complete); }
  void send_results(JobId producer, std::vector<JobId>& complete) { send(results_[producer], complete); }
  /// With prefetch: whether all inputs of `id` from other workers have arrived.
  [[nodiscard]] bool is_complete(JobId id) const { return missing_[id] == 0; }

  /// Without prefetch: asks for the next input of `id` that its worker does not have; false when it has all.
  bool fetch_next(JobId id);

  /// Begins, at `now`, the transfers that were asked for.
  void begin(double now);
  [[nodiscard]] double next() const { return in_flight_.next(); }
  /// Lets time pass until `now`. Adds to `complete` the jobs that an arrival concerns: with prefetch those
  /// whose inputs are now all there, without prefetch the job for which the transfer was fetched.
  void advance(double now, std::vector<JobId>& complete);

 private:
  struct Transfer {
    int from;
    int to;
    std::uint64_t bytes;
    std::vector<JobId> readers;  // by turn
    bool asked_for = false;      // without prefetch
  };
  struct Request {
    std::uint32_t turn;  // of the job that wants it
    std::uint32_t transfer;
    friend auto operator<=>(const Request&, const Request&) = default;
  };

  [[nodiscard]] double time(const Transfer& transfer) const {
    return costs_.link(transfer.from, transfer.to).time(transfer.bytes);
  }
  void send(const std::vector<std::uint32_t>& transfers, std::vector<JobId>& complete);
  void arrive(std::uint32_t transfer, std::vector<JobId>& complete);

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> weights_;               // transfers
  std::vector<std::vector<std::uint32_t>> results_;  // transfers by JobId of the producer
  std::vector<std::vector<std::uint32_t>> inputs_;   // transfers by JobId of the reader
  std::vector<std::uint32_t> missing_;               // by JobId: inputs that have not arrived
  std::vector<Request> requests_;                    // at the present time
  std::vector<std::uint32_t> arrived_;
  TransfersInFlight in_flight_;
};

}  // namespace starpipe::plan::detail
