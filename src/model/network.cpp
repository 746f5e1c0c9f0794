// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/network.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "src/model/networks.hpp"
#include "src/model/random.hpp"
#include "starpipe/plan/error.hpp"

namespace starpipe::model {
namespace {

struct NetworkKind {
  std::string_view name;
  UnitGraph (*units)(const ModelConfig& config, std::size_t microbatch_size);
};

constexpr std::array kKinds = {NetworkKind{"gpt", gpt_units}, NetworkKind{"mlp", mlp_units}};

/// First unit of each stage, and the number of units at the end.
using Bounds = std::vector<std::size_t>;

/// Contiguous shares with the smallest largest sum; among those the most even ones (smallest sum of
/// squares). O(parts * units^2).
Bounds balanced_bounds(const std::vector<double>& costs, std::size_t parts) {
  const std::size_t n = costs.size();
  std::vector<double> before = {0};
  for (const double cost : costs) before.push_back(before.back() + cost);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // from[p * (n + 1) + i]: where the last of p parts starts when they share the first i units best.
  std::vector<std::size_t> from((parts + 1) * (n + 1), 0);
  const auto solve = [&](auto&& combine) {
    std::vector<double> best = {0};  // with the parts so far, by units
    best.resize(n + 1, kInfinity);
    for (std::size_t p = 1; p <= parts; ++p) {
      std::vector<double> next(n + 1, kInfinity);
      for (std::size_t i = p; i <= n; ++i) {
        for (std::size_t j = p - 1; j < i; ++j) {
          const double cost = combine(best[j], before[i] - before[j]);
          if (cost >= next[i]) continue;
          next[i] = cost;
          from[p * (n + 1) + i] = j;
        }
      }
      best.swap(next);
    }
    return best[n];
  };
  const double bottleneck = solve([](double sofar, double part) { return std::max(sofar, part); });
  const double limit = bottleneck * (1 + 1e-9);
  solve([=](double sofar, double part) { return part <= limit ? sofar + part * part : kInfinity; });

  Bounds bounds(parts + 1, n);
  for (std::size_t p = parts; p > 0; --p) bounds[p - 1] = from[p * (n + 1) + bounds[p]];
  return bounds;
}

double flops(const Unit& unit) {
  double total = 0;
  for (const StageOp& op : unit) {
    if (op.layer != nullptr) total += op.layer->flops();
  }
  return total;
}

Bounds make_bounds(const std::vector<Unit>& units, std::size_t parts, const std::vector<int>& cuts) {
  if (cuts.empty()) {
    std::vector<double> costs;
    for (const Unit& unit : units) costs.push_back(flops(unit));
    return balanced_bounds(costs, parts);
  }
  if (cuts.size() + 1 != parts) {
    throw InputError("schedule.cuts: " + std::to_string(cuts.size()) + " cuts make " +
                     std::to_string(cuts.size() + 1) + " stages, not " + std::to_string(parts));
  }
  Bounds bounds = {0};
  for (const int cut : cuts) {
    if (cut < 1 || static_cast<std::size_t>(cut) >= units.size() ||
        static_cast<std::size_t>(cut) <= bounds.back()) {
      throw InputError("schedule.cuts: " + std::to_string(cut) + " is not ascending within the units 1 to " +
                       std::to_string(units.size() - 1));
    }
    bounds.push_back(static_cast<std::size_t>(cut));
  }
  bounds.push_back(units.size());
  return bounds;
}

std::size_t columns_after(const std::vector<StageOp>& ops, std::size_t columns) {
  for (const StageOp& op : ops) {
    if (op.layer != nullptr) columns = op.layer->output_columns();
  }
  return columns;
}

}  // namespace

void require_range(const char* key, int value, int low, int high) {
  if (value >= low && value <= high) return;
  throw InputError(std::string(key) + ": " + std::to_string(value) + " is not between " +
                   std::to_string(low) + " and " + std::to_string(high));
}

StageOp layer_op(const LayerSpec& spec) { return {StageOp::Kind::layer, make_layer(spec)}; }

std::vector<std::string> network_kinds() {
  std::vector<std::string> names;
  for (const NetworkKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::vector<plan::StageSizes> Network::sizes() const {
  const auto bytes = [](std::size_t floats) { return std::uint64_t{floats} * sizeof(float); };
  std::vector<plan::StageSizes> result;
  for (const Stage& stage : stages) {
    plan::StageSizes size;
    size.activation = bytes(stage.rows() * stage.output_columns());
    size.gradient = size.activation;
    size.stash = bytes(stage.stash_size());
    size.gradient_stash = bytes(stage.gradient_stash_size());
    size.weights = bytes(stage.parameter_size());
    result.push_back(size);
  }
  return result;
}

std::size_t Network::parameter_count() const {
  std::size_t count = 0;
  for (const Stage& stage : stages) count += stage.parameter_size();
  return count;
}

int Network::source_index(int stage) const {
  if (!graph.pred(stage).empty()) return -1;
  int index = 0;
  for (int s = 0; s < stage; ++s) index += graph.pred(s).empty() ? 1 : 0;
  return index;
}

Network build_network(const ModelConfig& config, int microbatch_size, int stages,
                      const std::vector<int>& cuts) {
  const auto kind =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const NetworkKind& k) { return k.name == config.kind; });
  if (kind == kKinds.end()) {
    std::string known;
    for (const NetworkKind& k : kKinds) known += (known.empty() ? "" : ", ") + std::string(k.name);
    throw InputError("model.kind: " + config.kind + " is not one of " + known);
  }
  require_range("training.microbatch_size", microbatch_size, 1, 1 << 20);
  const UnitGraph units = kind->units(config, static_cast<std::size_t>(microbatch_size));
  // BLAS counts in int, and memory is what limits any real model long before.
  if (units.rows > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw InputError("training.microbatch_size: a micro-batch of " + std::to_string(units.rows) +
                     " rows is too large");
  }

  const int legs = static_cast<int>(units.legs.size());
  const int most = static_cast<int>(units.legs[0].size());
  const bool tree = legs > 1;
  if (!tree && (stages < 1 || stages > most)) {
    throw InputError("schedule.stages: " + std::to_string(stages) + " is not between 1 and " +
                     std::to_string(most) + ", the units of the model");
  }
  const int each = tree ? (stages - 1) / legs : stages;
  if (tree && (each < 1 || each > most || each * legs + 1 != stages)) {
    throw InputError("schedule.stages: with model.legs " + std::to_string(legs) + " must be " +
                     std::to_string(legs) + " * n + 1 with n from 1 to " + std::to_string(most) + ", not " +
                     std::to_string(stages));
  }

  Network network;
  network.config = config;
  network.microbatch_size = microbatch_size;
  std::vector<std::pair<int, int>> edges;
  std::vector<std::size_t> leg_columns;
  for (const std::vector<Unit>& leg : units.legs) {
    const Bounds bounds = make_bounds(leg, static_cast<std::size_t>(each), cuts);
    std::size_t columns = units.leg_inputs;
    for (std::size_t part = 0; part + 1 < bounds.size(); ++part) {
      std::vector<StageOp> ops;
      for (std::size_t u = bounds[part]; u < bounds[part + 1]; ++u) {
        ops.insert(ops.end(), leg[u].begin(), leg[u].end());
      }
      const std::size_t after = columns_after(ops, columns);
      const bool last = part + 2 == bounds.size();
      const int s = static_cast<int>(network.stages.size());
      if (!last) edges.emplace_back(s, s + 1);
      if (last && tree) edges.emplace_back(s, stages - 1);
      network.stages.emplace_back(std::move(ops), units.rows, std::vector{columns},
                                  last && !tree ? units.loss : nullptr);
      columns = after;
    }
    leg_columns.push_back(columns);
  }
  if (tree) network.stages.emplace_back(units.join, units.rows, leg_columns, units.loss);
  network.graph = plan::StageGraph(stages, std::move(edges));
  return network;
}

std::vector<float> initial_parameters(const Stage& stage, std::uint64_t seed) {
  std::vector<float> values;
  values.reserve(stage.parameter_size());
  for (const Parameter& parameter : stage.parameters()) {
    const std::size_t size = parameter.size();
    if (parameter.deviation == 0) {
      values.insert(values.end(), size, static_cast<float>(parameter.mean));
      continue;
    }
    std::vector<std::uint32_t> words;
    for (const char c : parameter.name) words.push_back(static_cast<unsigned char>(c));
    Normal normal(generator(seed, words));
    for (std::size_t i = 0; i < size; ++i) {
      values.push_back(static_cast<float>(parameter.mean + parameter.deviation * normal()));
    }
  }
  return values;
}

}  // namespace starpipe::model
