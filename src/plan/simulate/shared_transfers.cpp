// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/shared_transfers.hpp"

#include <map>
#include <optional>
#include <unordered_map>

#include "plan/simulate/relays.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

SharedTransfers::SharedTransfers(const Schedule& schedule, const Costs& costs, const Fetches& fetches,
                                 CopiesInFlight* hosts)
    : schedule_(schedule),
      costs_(costs),
      results_(schedule.id_count()),
      inputs_(schedule.id_count()),
      missing_(schedule.id_count(), 0),
      in_flight_(costs.links, costs.workers_of_rank, costs.ordered_messages),
      hosts_(hosts) {
  std::unordered_map<std::uint64_t, std::uint32_t> copies;
  std::map<std::tuple<int, int, int>, std::uint32_t> of_rank;  // weights, by stage, holder and rank
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
        transfers_.push_back({fetch.from, worker, fetch.bytes, {}, fetches.copy(fetch, 0)});
        if (fetch.kind == Fetch::Kind::weights && from_other_rank)
          of_rank[{fetch.stage, fetch.from, worker / costs.workers_of_rank}] = transfer;
        (fetch.kind == Fetch::Kind::weights ? weights_ : results_[fetch.producer]).push_back(transfer);
      }
      transfers_[transfer].readers.push_back(id);
      inputs_[id].push_back(transfer);
    });
    missing_[id] = static_cast<std::uint32_t>(inputs_[id].size());
  }
  if (costs.relays && costs.prefetch) add_relays(fetches, of_rank);
}

// Replaces transfers of weights by segments. `of_rank`: the transfers, by stage, holder and the receiver's
// rank.
void SharedTransfers::add_relays(const Fetches& fetches,
                                 const std::map<std::tuple<int, int, int>, std::uint32_t>& of_rank) {
  const int each = costs_.workers_of_rank;
  for (const FetchedWeights& weights : relayed_weights(schedule_, costs_, fetches)) {
    const auto transfer_to = [&](int rank) { return of_rank.at({weights.stage, weights.from, rank}); };
    std::map<std::pair<std::size_t, int>, std::uint32_t> arriving;  // by segment of the weights and rank
    for (const RelayStep& step : relay_plan(weights, each)) {
      const auto number = static_cast<std::uint32_t>(segments_.size());
      const std::uint32_t transfer = transfer_to(step.to);
      const bool is_first = step.from == weights.from / each;
      segments_.push_back({.from = is_first ? weights.from : transfers_[transfer_to(step.from)].to,
                           .to = transfers_[transfer].to,
                           .bytes = step.bytes,
                           .turn = weights.turn,
                           .transfer = transfer});
      ++transfers_[transfer].segments;
      arriving[{step.segment, step.to}] = number;
      (is_first ? first_segments_ : segments_[arriving.at({step.segment, step.from})].next).push_back(number);
    }
  }
  std::erase_if(weights_, [&](std::uint32_t transfer) { return transfers_[transfer].segments > 0; });
}

void SharedTransfers::ask_for_segment(std::uint32_t segment) {
  requests_.emplace(segments_[segment].turn, static_cast<std::uint32_t>(transfers_.size()) + segment);
}

void SharedTransfers::arrive_segment(std::uint32_t segment, std::vector<JobId>& complete) {
  for (const std::uint32_t next : segments_[segment].next) ask_for_segment(next);
  const std::uint32_t transfer = segments_[segment].transfer;
  if (--transfers_[transfer].segments == 0) arrive(transfer, complete);
}

bool SharedTransfers::fetch_next(JobId id) {
  for (const std::uint32_t number : inputs_[id]) {
    Transfer& transfer = transfers_[number];
    if (transfer.asked_for) continue;
    transfer.asked_for = true;
    transfer.readers = {id};
    if (!takes_time(transfer)) continue;
    requests_.emplace(schedule_.turn(id), number);
    return true;
  }
  return false;
}

void SharedTransfers::begin(double now) {
  const auto own = static_cast<std::uint32_t>(transfers_.size());
  const auto send = [&](const auto& of, std::uint32_t number) {
    begin_way(now, {of.from, of.to, of.bytes}, number);
  };
  for (const auto& [turn, number] : requests_) {
    if (number < own) {
      send(transfers_[number], number);
    } else {
      send(segments_[number - own], number);
    }
  }
  requests_.clear();
}

void SharedTransfers::advance(double now, std::vector<JobId>& complete, std::vector<std::uint32_t>& others) {
  arrived_.clear();
  in_flight_.advance(now, arrived_);
  for (const std::uint32_t number : arrived_) {
    const auto message = messages_.find(number);
    if (message == messages_.end()) {
      deliver(number, complete, others);
      continue;
    }
    auto& [from, to, bytes, is_at_receiver] = message->second;
    is_at_receiver = true;
    hosts_->pass_host(now, {.worker = to, .out = false, .bytes = bytes, .number = number});
  }
}

void SharedTransfers::begin_way(double now, const Message& message, std::uint32_t number) {
  const auto& [from, to, bytes, is_at_receiver] = message;
  if (!passes_hosts(from, to)) return in_flight_.begin(now, from, to, bytes, number);
  messages_.emplace(number, message);
  if (HostCopy* const copy = host_copy(number)) {
    if (copy->is_there) return cross_network(now, number);
    copy->waiting.push_back(number);
    if (copy->waiting.size() > 1) return;
  }
  hosts_->pass_host(now, {.worker = from, .out = true, .bytes = bytes, .number = number});
}

// Returns what is known of the datum of a message at its sender's host; null for a message of its own.
SharedTransfers::HostCopy* SharedTransfers::host_copy(std::uint32_t number) {
  if (number >= transfers_.size() || !transfers_[number].datum) return nullptr;
  return &at_hosts_[*transfers_[number].datum];
}

void SharedTransfers::cross_network(double now, std::uint32_t number) {
  const Message& message = messages_.at(number);
  in_flight_.begin(now, message.from, message.to, message.bytes, number);
}

void SharedTransfers::passed_hosts(double now, std::span<const std::uint32_t> messages,
                                   std::vector<JobId>& complete, std::vector<std::uint32_t>& others) {
  for (const std::uint32_t number : messages) {
    const auto message = messages_.find(number);
    if (message->second.is_at_receiver) {
      messages_.erase(message);
      deliver(number, complete, others);
    } else if (HostCopy* const copy = host_copy(number)) {
      copy->is_there = true;
      for (const std::uint32_t waiting : copy->waiting) cross_network(now, waiting);
    } else {
      cross_network(now, number);
    }
  }
}

void SharedTransfers::deliver(std::uint32_t number, std::vector<JobId>& complete,
                              std::vector<std::uint32_t>& others) {
  const auto own = static_cast<std::uint32_t>(transfers_.size());
  const std::uint32_t own_and_segments = own + static_cast<std::uint32_t>(segments_.size());
  if (number < own) {
    arrive(number, complete);
  } else if (number < own_and_segments) {
    arrive_segment(number - own, complete);
  } else {
    others.push_back(number - own_and_segments);
  }
}

void SharedTransfers::send(const std::vector<std::uint32_t>& transfers, std::vector<JobId>& complete) {
  for (const std::uint32_t number : transfers) {
    if (takes_time(transfers_[number])) {
      requests_.emplace(schedule_.turn(transfers_[number].readers.front()), number);
    } else {
      arrive(number, complete);
    }
  }
}

void SharedTransfers::arrive(std::uint32_t transfer, std::vector<JobId>& complete) {
  for (const JobId id : transfers_[transfer].readers) {
    if (!costs_.prefetch || --missing_[id] == 0) complete.push_back(id);
  }
}

}  // namespace starpipe::plan
