// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/transfers_in_flight.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "plan/simulate/relays.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

void TransfersInFlight::begin(double now, int from, int to, std::uint64_t bytes, std::uint32_t number) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(transfers_.size()));
    transfers_.emplace_back();
  }
  const std::uint32_t entry = unused_.back();
  unused_.pop_back();
  Transfer& transfer = transfers_[entry];
  transfer = {.from = from, .to = to, .bytes = bytes, .number = number};
  if (links_.between(from, to).time(bytes) == 0) {
    push(now, Event::Kind::arrival, entry);
    return;
  }
  if (from / workers_of_rank_ == to / workers_of_rank_) {
    transfer.stream = &streams_[{from, to}];
    if (transfer.stream->busy) return transfer.stream->waiting.push_back(entry);
    transfer.stream->busy = true;
  }
  start(now, entry);
}

void TransfersInFlight::start(double now, std::uint32_t entry) {
  Transfer& transfer = transfers_[entry];
  const std::size_t l = links_.level(transfer.from, transfer.to);
  const Sharing sharing = links_.levels()[l].sharing;
  const Link& link = links_.between(transfer.from, transfer.to);
  const double passing = link.time(transfer.bytes) - link.alpha;
  const double at_ports = now + link.alpha;
  double end = now + link.time(transfer.bytes);
  if (sharing != Sharing::none && passing > 0) {
    transfer.out = port_of(l, transfer.from, true);
    transfer.in = port_of(l, transfer.to, false);
    if (sharing == Sharing::fair) {
      transfer.alone = std::min(ports_[transfer.out].capacity, ports_[transfer.in].capacity);
      transfer.left = passing * transfer.alone;
      transfer.since = at_ports;
      transfer.undelayed = end;
      const int from_rank = transfer.from / workers_of_rank_;
      const int to_rank = transfer.to / workers_of_rank_;
      if (ordered_messages_ && from_rank != to_rank)
        transfer.connection = &connections_[{from_rank, to_rank}];
      push(at_ports, Event::Kind::ports_begin, entry);
      return;
    }
    const double free_at = std::max(ports_[transfer.out].free_at, ports_[transfer.in].free_at);
    if (free_at > at_ports) end = free_at + passing;
    ports_[transfer.out].free_at = ports_[transfer.in].free_at = end;
  }
  push(end, Event::Kind::arrival, entry);
}

double TransfersInFlight::next() const {
  if (events_.empty()) return never;
  return events_.top().time;
}

void TransfersInFlight::advance(double now, std::vector<std::uint32_t>& arrived) {
  while (next() <= now) {
    const double time = next();
    while (next() == time) {
      const Event event = events_.top();
      events_.pop();
      handle(event, arrived);
    }
    change_rates(time);
    while (!events_.empty() && is_void(events_.top())) events_.pop();
  }
}

void TransfersInFlight::arrive(std::uint32_t entry, double now, std::vector<std::uint32_t>& arrived) {
  arrived.push_back(transfers_[entry].number);
  unused_.push_back(entry);
  Stream* const stream = transfers_[entry].stream;
  if (stream == nullptr) return;
  stream->busy = !stream->waiting.empty();
  if (!stream->busy) return;
  start(now, stream->waiting.front());
  stream->waiting.pop_front();
}

// Returns the event's Event::order.
std::uint64_t TransfersInFlight::push(double time, Event::Kind kind, std::uint32_t entry) {
  events_.push({time, pushed_, kind, entry});
  return pushed_++;
}

bool TransfersInFlight::is_void(const Event& event) const {
  return event.kind == Event::Kind::ports_end && event.order != transfers_[event.transfer].end_event;
}

void TransfersInFlight::handle(const Event& event, std::vector<std::uint32_t>& arrived) {
  if (event.kind == Event::Kind::arrival) return arrive(event.transfer, event.time, arrived);
  if (is_void(event)) return;
  if (event.kind == Event::Kind::ports_end) {
    leave_ports(event.transfer, event.time);
    return arrive(event.transfer, event.time, arrived);
  }
  Stream* const connection = transfers_[event.transfer].connection;
  if (connection != nullptr && std::exchange(connection->busy, true))
    return connection->waiting.push_back(event.transfer);
  pass_ports(event.transfer);
}

// Lets the bytes of a transfer pass from now on.
void TransfersInFlight::pass_ports(std::uint32_t entry) {
  for (const std::size_t port : {transfers_[entry].out, transfers_[entry].in}) {
    std::vector<std::uint32_t>& users = ports_[port].users;
    users.insert(std::ranges::lower_bound(users, entry), entry);
    changed_.push_back(port);
  }
}

// The bytes of a transfer have passed. The next message of its connection follows.
void TransfersInFlight::leave_ports(std::uint32_t entry, double now) {
  for (const std::size_t port : {transfers_[entry].out, transfers_[entry].in}) {
    std::vector<std::uint32_t>& users = ports_[port].users;
    users.erase(std::ranges::lower_bound(users, entry));
    changed_.push_back(port);
  }
  Stream* const connection = transfers_[entry].connection;
  if (connection == nullptr) return;
  connection->busy = !connection->waiting.empty();
  if (!connection->busy) return;
  const std::uint32_t next = connection->waiting.front();
  connection->waiting.pop_front();
  transfers_[next].since = now;
  transfers_[next].undelayed = now + transfers_[next].left / transfers_[next].alone;
  pass_ports(next);
}

std::size_t TransfersInFlight::port_of(std::size_t level, int worker, bool out) {
  const std::tuple place(level, links_.member(level, worker), out);
  const auto [found, is_new] = port_numbers_.try_emplace(place, ports_.size());
  if (is_new)
    ports_.push_back({.capacity = 1 / links_.levels()[level].slowness(links_.member(level, worker))});
  return found->second;
}

// Fills `reached_` with the ports that a chain of transfers connects to a changed port. The users of all
// other ports keep their rates.
void TransfersInFlight::reach_ports() {
  reached_.clear();
  const auto reach = [this](std::size_t port) {
    if (ports_[port].reached) return;
    ports_[port].reached = true;
    reached_.push_back(port);
  };
  for (const std::size_t port : changed_) reach(port);
  for (std::size_t i = 0; i < reached_.size(); ++i) {  // NOLINT(modernize-loop-convert): it grows
    for (const std::uint32_t user : ports_[reached_[i]].users) {
      reach(transfers_[user].out);
      reach(transfers_[user].in);
    }
  }
  std::ranges::sort(reached_);  // so that rounding does not depend on the order of the search
}

// Progressive filling: each round takes the port that has the least bandwidth left for each of its users
// without a new rate, and gives these users this rate. Other ports divide what is left among their other
// users.
void TransfersInFlight::change_rates(double now) {
  if (changed_.empty()) return;
  reach_ports();
  for (const std::size_t p : reached_) {
    Port& port = ports_[p];
    port.left = port.capacity;
    port.unfilled = port.users.size();
    for (const std::uint32_t user : port.users) transfers_[user].filled = false;
  }
  const auto share = [this](std::size_t p) {
    return ports_[p].left / static_cast<double>(ports_[p].unfilled);
  };
  while (true) {
    const std::size_t* tightest = nullptr;
    for (const std::size_t& p : reached_) {
      if (ports_[p].unfilled > 0 && (tightest == nullptr || share(p) < share(*tightest))) tightest = &p;
    }
    if (tightest == nullptr) break;
    const double rate = share(*tightest);
    for (const std::uint32_t user : ports_[*tightest].users) {
      Transfer& transfer = transfers_[user];
      if (std::exchange(transfer.filled, true)) continue;
      for (const std::size_t p : {transfer.out, transfer.in}) {
        ports_[p].left -= rate;
        --ports_[p].unfilled;
      }
      set_rate(user, rate, now);
    }
  }
  for (const std::size_t p : reached_) ports_[p].reached = false;
  changed_.clear();
}

void TransfersInFlight::set_rate(std::uint32_t entry, double rate, double now) {
  Transfer& transfer = transfers_[entry];
  if (transfer.rate == rate) return;
  const bool undelayed = transfer.rate == 0 && rate == transfer.alone;
  transfer.left = std::max(0.0, transfer.left - transfer.rate * (now - transfer.since));
  transfer.since = now;
  transfer.rate = rate;
  const double end = undelayed ? transfer.undelayed : now + transfer.left / rate;
  transfer.end_event = push(end, Event::Kind::ports_end, entry);
}

SharedTransfers::SharedTransfers(const Schedule& schedule, const Costs& costs, const Fetches& fetches)
    : schedule_(schedule),
      costs_(costs),
      results_(schedule.id_count()),
      inputs_(schedule.id_count()),
      missing_(schedule.id_count(), 0),
      in_flight_(costs.links, costs.workers_of_rank, costs.ordered_messages) {
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
        transfers_.push_back({fetch.from, worker, fetch.bytes, {}});
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

// Replaces transfers of weights by slices. `of_rank`: the transfers, by stage, holder and the receiver's
// rank.
void SharedTransfers::add_relays(const Fetches& fetches,
                                 const std::map<std::tuple<int, int, int>, std::uint32_t>& of_rank) {
  const int each = costs_.workers_of_rank;
  for (const FetchedWeights& weights : relayed_weights(schedule_, costs_, fetches)) {
    const auto transfer_to = [&](int rank) { return of_rank.at({weights.stage, weights.from, rank}); };
    std::map<std::pair<std::size_t, int>, std::uint32_t> arriving;  // by slice of the weights and rank
    for (const RelayStep& step : relay_plan(weights, each)) {
      const auto number = static_cast<std::uint32_t>(slices_.size());
      const std::uint32_t transfer = transfer_to(step.to);
      const bool is_first = step.from == weights.from / each;
      slices_.push_back({.from = is_first ? weights.from : transfers_[transfer_to(step.from)].to,
                         .to = transfers_[transfer].to,
                         .bytes = step.bytes,
                         .turn = weights.turn,
                         .transfer = transfer});
      ++transfers_[transfer].slices;
      arriving[{step.slice, step.to}] = number;
      (is_first ? first_slices_ : slices_[arriving.at({step.slice, step.from})].next).push_back(number);
    }
  }
  std::erase_if(weights_, [&](std::uint32_t transfer) { return transfers_[transfer].slices > 0; });
}

void SharedTransfers::ask_for_slice(std::uint32_t slice) {
  requests_.emplace(slices_[slice].turn, static_cast<std::uint32_t>(transfers_.size()) + slice);
}

void SharedTransfers::arrive_slice(std::uint32_t slice, std::vector<JobId>& complete) {
  for (const std::uint32_t next : slices_[slice].next) ask_for_slice(next);
  const std::uint32_t transfer = slices_[slice].transfer;
  if (--transfers_[transfer].slices == 0) arrive(transfer, complete);
}

bool SharedTransfers::fetch_next(JobId id) {
  for (const std::uint32_t number : inputs_[id]) {
    Transfer& transfer = transfers_[number];
    if (transfer.asked_for) continue;
    transfer.asked_for = true;
    transfer.readers = {id};
    if (time(transfer) == 0) continue;
    requests_.emplace(schedule_.turn(id), number);
    return true;
  }
  return false;
}

void SharedTransfers::begin(double now) {
  const auto own = static_cast<std::uint32_t>(transfers_.size());
  const auto send = [&](const auto& of, std::uint32_t number) {
    in_flight_.begin(now, of.from, of.to, of.bytes, number);
  };
  for (const auto& [turn, number] : requests_) {
    if (number < own) {
      send(transfers_[number], number);
    } else {
      send(slices_[number - own], number);
    }
  }
  requests_.clear();
}

void SharedTransfers::advance(double now, std::vector<JobId>& complete, std::vector<std::uint32_t>& others) {
  arrived_.clear();
  in_flight_.advance(now, arrived_);
  const auto own = static_cast<std::uint32_t>(transfers_.size());
  const std::uint32_t own_and_slices = own + static_cast<std::uint32_t>(slices_.size());
  for (const std::uint32_t number : arrived_) {
    if (number < own) {
      arrive(number, complete);
    } else if (number < own_and_slices) {
      arrive_slice(number - own, complete);
    } else {
      others.push_back(number - own_and_slices);
    }
  }
}

void SharedTransfers::send(const std::vector<std::uint32_t>& transfers, std::vector<JobId>& complete) {
  for (const std::uint32_t number : transfers) {
    if (time(transfers_[number]) == 0) {
      arrive(number, complete);
    } else {
      requests_.emplace(schedule_.turn(transfers_[number].readers.front()), number);
    }
  }
}

void SharedTransfers::arrive(std::uint32_t transfer, std::vector<JobId>& complete) {
  for (const JobId id : transfers_[transfer].readers) {
    if (!costs_.prefetch || --missing_[id] == 0) complete.push_back(id);
  }
}

}  // namespace starpipe::plan
