// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/transfers_in_flight.hpp"

#include <algorithm>
#include <optional>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

void TransfersInFlight::begin(double now, int from, int to, std::uint64_t bytes, std::uint32_t number) {
  Transfer transfer = {from, to, bytes, number};
  if (links_.between(from, to).time(bytes) == 0) return push_arrival(now, transfer);
  transfer.stream = stream_of(from, to);
  if (transfer.stream != no_stream) {
    Stream& stream = streams_[transfer.stream];
    if (stream.busy) return stream.waiting.push_back(transfer);
    stream.busy = true;
  }
  start(now, transfer);
}

void TransfersInFlight::start(double now, const Transfer& transfer) {
  const std::size_t l = links_.level(transfer.from, transfer.to);
  const auto& [name, workers, link, sharing] = links_.levels()[l];
  const double undelayed = now + link.time(transfer.bytes);
  const double passing = link.beta * static_cast<double>(transfer.bytes);
  if (sharing == Sharing::none || passing == 0) return push_arrival(undelayed, transfer);
  const std::size_t out = port_of(l, transfer.from, true);
  const std::size_t in = port_of(l, transfer.to, false);
  const double at_ports = now + link.alpha;
  if (sharing == Sharing::in_order) {
    const double free_at = std::max(ports_[out].free_at, ports_[in].free_at);
    const double end = free_at > at_ports ? free_at + passing : undelayed;
    ports_[out].free_at = ports_[in].free_at = end;
    return push_arrival(end, transfer);
  }
  const std::uint32_t flow = new_flow();
  flows_[flow] = {.number = transfer.number,
                  .stream = transfer.stream,
                  .turn = flows_[flow].turn,
                  .out = out,
                  .in = in,
                  .left = passing,
                  .since = at_ports,
                  .undelayed = undelayed};
  events_.push({at_ports, pushed_++, Event::Kind::flow_begins, flow, 0, no_stream});
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

// The stream from one worker to another, or `no_stream` between ranks.
std::uint32_t TransfersInFlight::stream_of(int from, int to) {
  if (from / workers_of_rank_ != to / workers_of_rank_) return no_stream;
  const std::uint64_t pair = (static_cast<std::uint64_t>(from) << 32U) | static_cast<std::uint32_t>(to);
  const auto [found, is_new] = stream_numbers_.try_emplace(pair, static_cast<std::uint32_t>(streams_.size()));
  if (is_new) streams_.emplace_back();
  return found->second;
}

void TransfersInFlight::arrive(std::uint32_t number, std::uint32_t stream, double now,
                               std::vector<std::uint32_t>& arrived) {
  arrived.push_back(number);
  if (stream == no_stream) return;
  std::deque<Transfer>& waiting = streams_[stream].waiting;
  streams_[stream].busy = !waiting.empty();
  if (waiting.empty()) return;
  start(now, waiting.front());
  waiting.pop_front();
}

void TransfersInFlight::push_arrival(double time, const Transfer& transfer) {
  events_.push({time, pushed_++, Event::Kind::arrival, transfer.number, 0, transfer.stream});
}

bool TransfersInFlight::is_void(const Event& event) const {
  return event.kind == Event::Kind::flow_ends && event.turn != flows_[event.index].turn;
}

void TransfersInFlight::handle(const Event& event, std::vector<std::uint32_t>& arrived) {
  if (event.kind == Event::Kind::arrival) return arrive(event.index, event.stream, event.time, arrived);
  if (is_void(event)) return;
  const Flow flow = flows_[event.index];
  for (const std::size_t port : {flow.out, flow.in}) {
    std::vector<std::uint32_t>& users = ports_[port].flows;
    const auto at = std::ranges::lower_bound(users, event.index);
    if (event.kind == Event::Kind::flow_begins) {
      users.insert(at, event.index);
    } else {
      users.erase(at);
    }
    changed_.push_back(port);
  }
  if (event.kind == Event::Kind::flow_begins) return;
  ++flows_[event.index].turn;
  unused_flows_.push_back(event.index);
  arrive(flow.number, flow.stream, event.time, arrived);
}

std::size_t TransfersInFlight::port_of(std::size_t level, int worker, bool out) {
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  port_numbers_.resize(links_.levels().size());
  std::vector<std::size_t>& numbers = port_numbers_[level];
  const std::size_t place = 2 * index(links_.member(level, worker)) + (out ? 1 : 0);
  if (numbers.size() <= place) numbers.resize(place + 1, none);
  if (numbers[place] == none) {
    numbers[place] = ports_.size();
    ports_.emplace_back();
  }
  return numbers[place];
}

std::uint32_t TransfersInFlight::new_flow() {
  if (unused_flows_.empty()) {
    flows_.emplace_back();
    return static_cast<std::uint32_t>(flows_.size() - 1);
  }
  const std::uint32_t flow = unused_flows_.back();
  unused_flows_.pop_back();
  return flow;
}

// Ports that are connected to a changed port by flows. The flows of all other ports keep their rates.
void TransfersInFlight::reach_ports() {
  reached_.clear();
  const auto reach = [this](std::size_t port) {
    if (ports_[port].reached) return;
    ports_[port].reached = true;
    reached_.push_back(port);
  };
  for (const std::size_t port : changed_) reach(port);
  for (std::size_t i = 0; i < reached_.size(); ++i) {  // NOLINT(modernize-loop-convert): it grows
    for (const std::uint32_t flow : ports_[reached_[i]].flows) {
      reach(flows_[flow].out);
      reach(flows_[flow].in);
    }
  }
  std::ranges::sort(reached_);  // so that rounding does not depend on the order of the search
}

// Progressive filling: the port that has the least bandwidth for each of its flows gives each that much; the
// rest of the other ports is left to their other flows.
void TransfersInFlight::change_rates(double now) {
  if (changed_.empty()) return;
  reach_ports();
  for (const std::size_t p : reached_) {
    Port& port = ports_[p];
    port.left = 1;
    port.unfilled = port.flows.size();
    for (const std::uint32_t flow : port.flows) flows_[flow].filled = false;
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
    for (const std::uint32_t flow : ports_[*tightest].flows) {
      if (flows_[flow].filled) continue;
      flows_[flow].filled = true;
      for (const std::size_t p : {flows_[flow].out, flows_[flow].in}) {
        ports_[p].left -= rate;
        --ports_[p].unfilled;
      }
      set_rate(flow, rate, now);
    }
  }
  for (const std::size_t p : reached_) ports_[p].reached = false;
  changed_.clear();
}

void TransfersInFlight::set_rate(std::uint32_t number, double rate, double now) {
  Flow& flow = flows_[number];
  if (flow.rate == rate) return;
  const bool undelayed = flow.rate == 0 && rate == 1;
  flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
  flow.since = now;
  flow.rate = rate;
  ++flow.turn;
  const double end = undelayed ? flow.undelayed : now + flow.left / rate;
  events_.push({end, pushed_++, Event::Kind::flow_ends, number, flow.turn, no_stream});
}

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

}  // namespace starpipe::plan
