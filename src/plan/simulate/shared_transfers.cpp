// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/shared_transfers.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace starpipe::plan::detail {

SharedTransfers::SharedTransfers(const Schedule& schedule, const Costs& costs, const Fetches& fetches)
    : schedule_(schedule),
      costs_(costs),
      results_(schedule.id_count()),
      inputs_(schedule.id_count()),
      missing_(schedule.id_count(), 0),
      in_flight_(costs.links, costs.workers_of_rank) {
  std::unordered_map<std::uint64_t, std::uint32_t> copies;
  const auto first_of_rank = [&](int worker) { return worker - worker % costs.workers_of_rank; };
  for (const JobId id : schedule.order()) {
    const int worker = schedule.compute(id);
    fetches.for_each(id, [&](const Fetch& fetch) {
      auto transfer = static_cast<std::uint32_t>(transfers_.size());
      const int rank = first_of_rank(worker);
      const bool from_other_rank = costs.prefetch && rank != first_of_rank(fetch.from);
      const std::optional<std::uint64_t> copy = fetches.copy(fetch, from_other_rank ? rank : worker);
      if (copy) transfer = copies.try_emplace(*copy, transfer).first->second;
      if (transfer == transfers_.size()) {
        transfers_.push_back({fetch.from, worker, fetch.bytes, {}});
        (fetch.kind == Fetch::Kind::weights ? weights_ : results_[fetch.producer]).push_back(transfer);
      }
      transfers_[transfer].readers.push_back(id);
      inputs_[id].push_back(transfer);
    });
    missing_[id] = static_cast<std::uint32_t>(inputs_[id].size());
  }
}

bool SharedTransfers::fetch_next(JobId id) {
  for (const std::uint32_t number : inputs_[id]) {
    Transfer& transfer = transfers_[number];
    if (transfer.asked_for) continue;
    transfer.asked_for = true;
    transfer.readers = {id};
    if (time(transfer) == 0) continue;
    requests_.push_back({schedule_.turn(id), number});
    return true;
  }
  return false;
}

void SharedTransfers::begin(double now) {
  std::ranges::sort(requests_);
  for (const Request& request : requests_) {
    const Transfer& transfer = transfers_[request.transfer];
    in_flight_.begin(now, transfer.from, transfer.to, transfer.bytes, request.transfer);
  }
  requests_.clear();
}

void SharedTransfers::advance(double now, std::vector<JobId>& complete) {
  arrived_.clear();
  in_flight_.advance(now, arrived_);
  for (const std::uint32_t transfer : arrived_) arrive(transfer, complete);
}

void SharedTransfers::send(const std::vector<std::uint32_t>& transfers, std::vector<JobId>& complete) {
  for (const std::uint32_t number : transfers) {
    if (time(transfers_[number]) == 0) {
      arrive(number, complete);
    } else {
      requests_.push_back({schedule_.turn(transfers_[number].readers.front()), number});
    }
  }
}

void SharedTransfers::arrive(std::uint32_t transfer, std::vector<JobId>& complete) {
  for (const JobId id : transfers_[transfer].readers) {
    if (!costs_.prefetch || --missing_[id] == 0) complete.push_back(id);
  }
}

}  // namespace starpipe::plan::detail
