// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/worker_map.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::runtime {

WorkerMap::WorkerMap(int workers, int ranks) : ranks_(ranks), slots_(index(workers)) {
  if (ranks > workers) {
    throw InputError(
        fmt::format("schedule.workers: {} ranks for {} workers, some ranks would have none", ranks, workers));
  }
  std::iota(slots_.begin(), slots_.end(), 0);
  workers_ = slots_;
}

WorkerMap::WorkerMap(int ranks, std::vector<int> slots)
    : ranks_(ranks), slots_(std::move(slots)), workers_(slots_.size(), -1) {
  for (int worker = 0; worker < workers(); ++worker) {
    const int at = slot(worker);
    if (at < 0 || at >= workers() || workers_[index(at)] >= 0)
      throw std::logic_error("two workers in one slot");
    workers_[index(at)] = worker;
  }
}

std::vector<int> WorkerMap::workers_of(int rank) const {
  const auto begin = workers_.begin() + first(rank);
  return {begin, begin + count(rank)};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankLocation, machine, binding, bound_by, cores, workers, bound,
                                   mpi_thread, logical_workers, devices, transport, products)

namespace {

std::string mpi_thread_place(const Topology& host, const CoreShare& share, int ranks) {
  if (ranks == 1) return "sends nothing";
  if (const auto variable = user_binds_mpi_thread()) return fmt::format("as {} says", *variable);
  if (const std::string pus = host.free_pus(share); !pus.empty()) return "on PUs " + pus;
  return share.worker_pus.empty() ? "not bound" : "where a worker waits";
}

std::string bound_by(const Topology& host, const std::string& binding, const CoreShare& share) {
  if (share.binding != binding) return "starpipe";
  return binding == host.allowed() ? "" : "launcher";
}

}  // namespace

RankLocation location_of(const std::string& machine, const Topology& host, const std::string& binding,
                         const CoreShare& share, int workers, int ranks, std::span<const Device> devices) {
  RankLocation location{.machine = machine,
                        .binding = share.binding,
                        .bound_by = bound_by(host, binding, share),
                        .cores = host.cores(share.binding),
                        .workers = workers,
                        .bound = !share.worker_pus.empty(),
                        .mpi_thread = mpi_thread_place(host, share, ranks),
                        .logical_workers = {},
                        .devices = {},
                        .transport = {},
                        .products = {}};
  for (const Device& device : devices) location.devices.push_back(device.name);
  return location;
}

RankLocation own_location(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                          std::span<const Device> devices) {
  const Hardware hardware = find_hardware();
  RankLocation mine = location_of(hardware.machine, Topology::host(), hardware.binding, share,
                                  map.count(mpi.rank()), mpi.ranks(), devices);
  mine.logical_workers = map.workers_of(mpi.rank());
  mine.transport = transports();
  return mine;
}

std::vector<RankLocation> locations_on_root(const Mpi& mpi, const RankLocation& mine) {
  return values_on_root(mpi, mine);
}

namespace {

using Mapping = std::vector<int>;  // by worker: its device

constexpr int shuffled_starts = 20;
constexpr std::int64_t max_tries = 200'000'000;  // about a second

/// A quadratic assignment problem: the amounts that workers send each other, both ways together, and the
/// seconds per byte between devices.
class MappingProblem {
 public:
  MappingProblem(std::span<const Device> devices, std::span<const plan::Traffic> traffic)
      : size_(devices.size()), peers_(size_), distances_(size_ * size_, 0) {
    for (const Device& device : devices) kinds_.push_back(device.kind);
    const bool sized =
        std::ranges::any_of(traffic, [](const plan::Traffic& pair) { return pair.sent.bytes > 0; });
    std::vector<double> amounts(size_ * size_, 0);
    for (const plan::Traffic& pair : traffic) {
      const std::size_t low = index(std::min(pair.from, pair.to));
      const std::size_t high = index(std::max(pair.from, pair.to));
      if (high >= size_) throw std::logic_error("traffic of a worker that has no device");
      amounts[low * size_ + high] += static_cast<double>(sized ? pair.sent.bytes : pair.sent.count);
    }
    for (std::size_t a = 0; a < size_; ++a) {
      for (std::size_t b = a + 1; b < size_; ++b) {
        distances_[a * size_ + b] = distances_[b * size_ + a] =
            1 / link_between(devices[a], devices[b]).bandwidth;
        const double amount = amounts[a * size_ + b];
        if (amount <= 0) continue;
        peers_[a].push_back({b, amount});
        peers_[b].push_back({a, amount});
      }
    }
  }

  struct Peer {
    std::size_t worker;
    double amount;
  };

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const std::vector<Peer>& peers(std::size_t worker) const { return peers_[worker]; }
  /// Returns the kind of device `number`, which is also the kind that worker `number` needs.
  [[nodiscard]] DeviceKind kind(std::size_t number) const { return kinds_[number]; }
  [[nodiscard]] double distance(int a, int b) const { return distances_[index(a) * size_ + index(b)]; }

  [[nodiscard]] double cost(const Mapping& mapping) const {
    double sum = 0;
    for (std::size_t a = 0; a < size_; ++a) {
      for (const Peer& peer : peers_[a]) {
        if (a < peer.worker) sum += peer.amount * distance(mapping[a], mapping[peer.worker]);
      }
    }
    return sum;
  }

  /// Returns the change of the cost if two workers exchange their devices.
  [[nodiscard]] double exchange(const Mapping& mapping, std::size_t a, std::size_t b) const {
    double change = 0;
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      for (const Peer& peer : peers_[from]) {
        if (peer.worker == to) continue;
        const int there = mapping[peer.worker];
        change += peer.amount * (distance(mapping[to], there) - distance(mapping[from], there));
      }
    }
    return change;
  }

  /// True if exchanging the two devices changes the cost of no mapping.
  [[nodiscard]] bool interchangeable(int a, int b) const {
    if (kind(index(a)) != kind(index(b))) return false;
    for (int other = 0; std::cmp_less(other, size_); ++other) {
      if (other != a && other != b && distance(a, other) != distance(b, other)) return false;
    }
    return true;
  }

 private:
  std::size_t size_;
  std::vector<DeviceKind> kinds_;
  std::vector<std::vector<Peer>> peers_;
  std::vector<double> distances_;
};

/// True if a mapping of this cost replaces the best one: the difference must be more than rounding.
bool is_better(double cost, double best) { return cost < best * (1 - 1e-9); }

/// Tries all mappings, except mappings that cannot be better than the best so far and mappings that differ
/// from another only by an exchange of interchangeable devices.
class BranchAndBound {
 public:
  BranchAndBound(const MappingProblem& problem, Mapping start)
      : problem_(problem),
        best_(std::move(start)),
        least_(problem.cost(best_)),
        mapping_(problem.size(), -1),
        taken_(problem.size(), false),
        order_(problem.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    // Workers that send much come first: their cost rules out bad mappings early.
    std::ranges::stable_sort(order_, std::greater{}, [&](std::size_t worker) {
      double sum = 0;
      for (const MappingProblem::Peer& peer : problem.peers(worker)) sum += peer.amount;
      return sum;
    });
    nearest_ = std::numeric_limits<double>::infinity();
    for (int a = 0; std::cmp_less(a, problem.size()); ++a) {
      for (int b = 0; b < a; ++b) nearest_ = std::min(nearest_, problem.distance(a, b));
    }
    for (std::size_t w = 0; w < problem.size(); ++w) {
      for (const MappingProblem::Peer& peer : problem.peers(w)) open_ += w < peer.worker ? peer.amount : 0;
    }
  }

  Mapping run() {
    assign(0, 0, open_);
    return std::move(best_);
  }

 private:
  // Gives devices to the workers from position `depth` of the order on. `cost`: of messages between workers
  // that have devices. `open`: the amount of all other messages, which take the fastest link at best.
  void assign(std::size_t depth, double cost, double open) {
    if (!is_better(cost + std::max(0.0, open) * nearest_, least_)) return;
    if (depth == order_.size()) {
      best_ = mapping_;
      least_ = cost;
      return;
    }
    const std::size_t worker = order_[depth];
    for (int device = 0; std::cmp_less(device, problem_.size()); ++device) {
      const std::size_t d = index(device);
      if (taken_[d] || problem_.kind(d) != problem_.kind(worker) || repeats_earlier(device)) continue;
      double more = 0;
      double closed = 0;
      for (const MappingProblem::Peer& peer : problem_.peers(worker)) {
        const int there = mapping_[peer.worker];
        if (there < 0) continue;
        more += peer.amount * problem_.distance(device, there);
        closed += peer.amount;
      }
      mapping_[worker] = device;
      taken_[d] = true;
      assign(depth + 1, cost + more, open - closed);
      taken_[d] = false;
      mapping_[worker] = -1;
    }
  }

  [[nodiscard]] bool repeats_earlier(int device) const {
    for (int other = 0; other < device; ++other) {
      if (!taken_[index(other)] && problem_.interchangeable(other, device)) return true;
    }
    return false;
  }

  const MappingProblem& problem_;
  Mapping best_;
  double least_;
  Mapping mapping_;
  std::vector<bool> taken_;
  std::vector<std::size_t> order_;
  double nearest_ = 0;
  double open_ = 0;
};

/// Gives each worker in turn the device where it costs least. The next worker is the one that exchanges most
/// with the workers that have devices.
Mapping greedy(const MappingProblem& problem) {
  const std::size_t size = problem.size();
  Mapping mapping(size, -1);
  std::vector<bool> taken(size, false);
  std::vector<double> pull(size, 0);
  for (std::size_t step = 0; step < size; ++step) {
    std::optional<std::size_t> next;
    for (std::size_t w = 0; w < size; ++w) {
      if (mapping[w] < 0 && (!next || pull[w] > pull[*next])) next = w;
    }
    int best = -1;
    double min = std::numeric_limits<double>::infinity();
    for (int device = 0; std::cmp_less(device, size); ++device) {
      const std::size_t d = index(device);
      if (taken[d] || problem.kind(d) != problem.kind(*next)) continue;
      double cost = 0;
      for (const MappingProblem::Peer& peer : problem.peers(*next)) {
        if (mapping[peer.worker] >= 0) cost += peer.amount * problem.distance(device, mapping[peer.worker]);
      }
      if (cost >= min) continue;
      min = cost;
      best = device;
    }
    mapping[*next] = best;
    taken[index(best)] = true;
    for (const MappingProblem::Peer& peer : problem.peers(*next)) pull[peer.worker] += peer.amount;
  }
  return mapping;
}

/// Exchanges pairs of workers until no exchange is better, or the tries are used up.
void improve(const MappingProblem& problem, Mapping& mapping, std::int64_t& tries) {
  double cost = problem.cost(mapping);
  for (bool improved = true; improved;) {
    improved = false;
    for (std::size_t a = 0; a < problem.size(); ++a) {
      for (std::size_t b = a + 1; b < problem.size(); ++b) {
        if (problem.kind(a) != problem.kind(b)) continue;
        tries -= static_cast<std::int64_t>(1 + problem.peers(a).size() + problem.peers(b).size());
        if (tries < 0) return;
        const double change = problem.exchange(mapping, a, b);
        if (change >= -1e-9 * cost) continue;
        std::swap(mapping[a], mapping[b]);
        cost += change;
        improved = true;
      }
    }
  }
}

/// Gives the devices, in this order, each to the next worker of its kind.
Mapping dealt(const MappingProblem& problem, const std::vector<int>& order) {
  Mapping mapping(problem.size());
  std::map<DeviceKind, std::size_t> next;
  for (const int device : order) {
    const DeviceKind kind = problem.kind(index(device));
    std::size_t& worker = next[kind];
    while (problem.kind(worker) != kind) ++worker;
    mapping[worker++] = device;
  }
  return mapping;
}

/// Returns the best mapping that exchanges reach from several starts: linear, greedy, and shuffled ones.
Mapping search(const MappingProblem& problem) {
  std::int64_t tries = max_tries;
  Mapping linear(problem.size());
  std::iota(linear.begin(), linear.end(), 0);
  Mapping best = linear;
  double min = problem.cost(best);
  std::mt19937_64 random(1);
  Mapping shuffled = linear;
  for (int start = -2; start < shuffled_starts && tries > 0; ++start) {
    if (start >= 0) std::ranges::shuffle(shuffled, random);
    Mapping mapping = start == -2 ? linear : start == -1 ? greedy(problem) : dealt(problem, shuffled);
    improve(problem, mapping, tries);
    const double cost = problem.cost(mapping);
    if (!is_better(cost, min)) continue;
    min = cost;
    best = std::move(mapping);
  }
  return best;
}

}  // namespace

std::vector<int> map_workers(std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  const MappingProblem problem(devices, traffic);
  Mapping found = search(problem);
  return problem.size() <= exact_mapping ? BranchAndBound(problem, std::move(found)).run() : found;
}

WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic) {
  std::vector<Device> all;
  for (const std::vector<Device>& of_rank : gather_devices(mpi, std::move(devices)))
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  // Rank 0 decides for all: hosts of different kinds may round differently.
  std::vector<int> slots;
  if (mpi.rank() == 0) slots = map_workers(all, traffic);
  return {mpi.ranks(), share_all(mpi, slots)};
}

}  // namespace starpipe::runtime
