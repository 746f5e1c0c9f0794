// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/transfers_in_flight.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

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

}  // namespace starpipe::plan
