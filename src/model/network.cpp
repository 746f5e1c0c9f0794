// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/network.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/search/partition.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/slice_sizes.hpp"

namespace starpipe::model {
namespace {

/// Returns the kind's key of this name, or null.
const NetworkKey* find_key(const ModelConfig& config, std::string_view name) {
  const std::vector<NetworkKey>& keys = find_network(config.kind).keys;
  const auto found = std::ranges::find(keys, name, &NetworkKey::name);
  return found == keys.end() ? nullptr : &*found;
}

// Returns `make()`. Throws InputError if layers do not fit: the network of a plug-in or program may be wrong.
template <class Make>
auto of_fitting_layers(const ModelConfig& config, Make make) {
  try {
    return make();
  } catch (const std::invalid_argument& error) {
    throw InputError(fmt::format("model.kind {}: {}", config.kind, error.what()));
  }
}

UnitGraph make_units(const ModelConfig& config, int microbatch_size) {
  const NetworkKind& kind = find_network(config.kind);
  for (const auto& [name, value] : config.options) {
    if (find_key(config, name) == nullptr)
      throw InputError(fmt::format("model.{}: does not apply to model.kind {}", name, config.kind));
  }
  const auto refuse = [](const std::string& key, const std::string& problem) {
    if (!problem.empty()) throw InputError(fmt::format("{}: {}", key, problem));
  };
  refuse("training.microbatch_size",
         problem_of({.name = "", .default_value = 1, .meaning = "", .interval = from_1_to(max_samples)},
                    microbatch_size));
  for (const NetworkKey& key : kind.keys) {
    refuse("model." + key.name, problem_of(key, option_value(config, key.name)));
  }
  UnitGraph graph = of_fitting_layers(config, [&] { return kind.units(config, index(microbatch_size)); });
  refuse("model.kind " + config.kind, graph.branches.empty() || graph.branches.front().empty()
                                          ? "the network has no units"
                                      : graph.loss == nullptr ? "the network has no loss"
                                                              : "");
  const auto detached = [](const Unit& unit) { return unit.detached; };
  if (config.vocabulary.shards > 1 && std::ranges::none_of(graph.branches.front(), detached)) {
    throw InputError(fmt::format("schedule.vocabulary.shards: does not apply to model.kind {}", config.kind));
  }
  return graph;
}

double flops(const Unit& unit) {
  double total = flops(unit.ops);
  for (const auto& shards : unit.halves) {
    for (const std::vector<StageOp>& shard : shards) total += flops(shard);
  }
  return total;
}

/// First unit of each stage, and the number of units at the end.
using Bounds = std::vector<std::size_t>;

/// Cuts into contiguous stages such that the largest number of FLOPs of a stage is the smallest possible.
std::vector<int> balanced_cuts(std::span<const Unit> units, std::size_t parts) {
  plan::PartitionRequest request{.workers = static_cast<int>(parts), .allocation = plan::Allocation::placed};
  for (const Unit& unit : units) request.units.push_back({.time = {.F = flops(unit), .B = 0, .W = 0}});
  for (int s = 0; s < request.workers; ++s) request.stage_workers.push_back(s);
  return plan::partition(request).cuts;
}

/// Balances the units between embedding and head, whose shards load all workers alike.
std::vector<int> balanced_cuts_between(std::span<const Unit> units, std::size_t parts) {
  const std::span<const Unit> between = units.subspan(1, units.size() - 2);
  if (parts > between.size()) return balanced_cuts(units, parts);
  std::vector<int> cuts = balanced_cuts(between, parts);
  for (int& cut : cuts) ++cut;
  return cuts;
}

Bounds make_bounds(const std::vector<Unit>& units, std::size_t parts, std::vector<int> cuts,
                   const VocabularyShards& vocabulary) {
  const bool spread = vocabulary.shards > 1 && vocabulary.placement == plan::ShardPlacement::all;
  if (cuts.empty()) cuts = spread ? balanced_cuts_between(units, parts) : balanced_cuts(units, parts);
  if (cuts.size() + 1 != parts) {
    throw InputError("schedule.cuts: " + std::to_string(cuts.size()) + " cuts make " +
                     std::to_string(cuts.size() + 1) + " stages, not " + std::to_string(parts));
  }
  const std::string unfit = plan::cuts_problem(cuts, static_cast<int>(units.size()));
  if (!unfit.empty()) throw InputError("schedule.cuts: " + unfit);
  Bounds bounds = {0};
  for (const int cut : cuts) bounds.push_back(index(cut));
  bounds.push_back(units.size());
  return bounds;
}

std::size_t columns_after(const std::vector<StageOp>& ops, std::size_t columns) {
  for (const StageOp& op : ops) {
    if (op.layer != nullptr) columns = op.layer->output_columns();
  }
  return columns;
}

bool has_shards(const UnitGraph& graph) {
  return std::ranges::any_of(graph.branches.front(), [](const Unit& unit) { return !unit.halves.empty(); });
}

/// Builds the stages of a network. Units without shards that follow each other in a stage are one stage; each
/// shard is one, and so is each sum under `sums: one`. Only a chain has shards.
class StageBuilder {
 public:
  StageBuilder(Network& network, const UnitGraph& units) : network_(network), units_(units) {
    const auto sums = network.config.options.find(sums_key);
    sums_by_one_ =
        sums != network.config.options.end() && sums->second == OptionValue(std::string(sums_by_one));
  }

  /// Adds a branch, cut at `bounds`. A chain ends with the loss.
  void add(const std::vector<Unit>& branch, const Bounds& bounds) {
    before_.clear();
    inputs_ = {units_.branch_inputs};
    for (std::size_t part = 0; part + 1 < bounds.size(); ++part, ++whole_) {
      const std::size_t first = network_.stages.size();
      std::vector<StageOp> ops;
      for (std::size_t u = bounds[part]; u < bounds[part + 1]; ++u) {
        ops.insert(ops.end(), branch[u].ops.begin(), branch[u].ops.end());
        if (branch[u].halves.empty()) continue;
        if (!ops.empty()) add_shards({std::exchange(ops, {})}, nullptr, false);
        for (const auto& shards : branch[u].halves) add_shards(shards, nullptr, branch[u].detached);
        join_ = branch[u].join;
      }
      const bool has_loss = part + 2 == bounds.size() && !is_tree();
      // The loss of a head in shards is a stage of its own.
      const bool follows_shards = ops.empty() && network_.stages.size() > first;
      if (follows_shards && !has_loss) continue;
      add_shards({std::move(ops)}, has_loss ? units_.loss : nullptr, follows_shards);
    }
    ends_.insert(ends_.end(), before_.begin(), before_.end());
    end_columns_.insert(end_columns_.end(), inputs_.begin(), inputs_.end());
  }

  /// Joins the branches of a tree, and completes the network.
  void finish() {
    if (is_tree()) {
      before_ = ends_;
      inputs_ = end_columns_;
      join_ = Join::columns;
      add_shards({units_.join.ops}, units_.loss, false);
    }
    if (!has_shards(units_)) network_.parts.clear();
    network_.graph = plan::StageGraph(static_cast<int>(network_.stages.size()), std::move(edges_))
                         .with_shards(std::move(side_by_side_));
  }

 private:
  [[nodiscard]] bool is_tree() const { return units_.branches.size() > 1; }

  void add_shards(const std::vector<std::vector<StageOp>>& shards, const std::shared_ptr<const Loss>& loss,
                  bool detached) {
    // A stage without ops hands on the sum of its inputs. A whole stage adds them itself.
    if (sums_by_one_ && shards.size() > 1 && before_.size() > 1) add_shards({{}}, nullptr, false);
    std::vector<int> added;
    const Precision precision = detached && loss != nullptr ? loss->precision() : network_.config.precision;
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      const auto s = static_cast<int>(network_.stages.size());
      for (const int from : before_) edges_.emplace_back(from, s);
      network_.stages.emplace_back(shards[shard], units_.rows, inputs_, loss, precision, join_);
      network_.parts.push_back({.stage = whole_, .shard = static_cast<int>(shard), .detached = detached});
      added.push_back(s);
    }
    inputs_.assign(added.size(), columns_after(shards.front(), inputs_.front()));
    if (added.size() > 1) side_by_side_.push_back(added);
    join_ = Join::add;
    before_ = std::move(added);
  }

  Network& network_;
  const UnitGraph& units_;
  bool sums_by_one_;                 // true if a stage of its own adds the outputs of shards
  int whole_ = 0;                    // number of the stage of the chain
  std::vector<int> before_;          // the stages whose outputs the next ones read
  std::vector<std::size_t> inputs_;  // columns of these outputs, or of the data
  Join join_ = Join::add;            // how the next ones join them
  std::vector<int> ends_;            // the last stage of each branch
  std::vector<std::size_t> end_columns_;
  std::vector<std::pair<int, int>> edges_;
  std::vector<std::vector<int>> side_by_side_;  // the shards of each half
};

}  // namespace

OptionValue option_value(const ModelConfig& config, std::string_view key) {
  if (const auto given = config.options.find(key); given != config.options.end()) return given->second;
  if (const NetworkKey* const known = find_key(config, key)) return known->default_value;
  throw std::logic_error(fmt::format("{} has no key {}", config.kind, key));
}

int option_or(const ModelConfig& config, std::string_view key, int otherwise) {
  return find_key(config, key) != nullptr ? option(config, key) : otherwise;
}

int max_shards(const ModelConfig& config) {
  if (find_key(config, tensor_key) == nullptr) return 1;
  return std::ranges::max(option<std::vector<int>>(config, tensor_key));
}

std::string to_string(const OptionValue& value) {
  return std::visit([](const auto& one) { return fmt::format("{}", one); }, value);
}

std::vector<std::string> network_kinds() {
  std::vector<std::string> names;
  for (const NetworkKind& kind : registered_networks()) names.push_back(kind.name);
  return names;
}

std::vector<std::string> unit_names(const ModelConfig& config) {
  const UnitGraph graph = make_units(config, 1);
  std::vector<std::string> names;
  for (const Unit& unit : graph.branches.front()) names.push_back(unit.name);
  return names;
}

Network build_units(const ModelConfig& config, int microbatch_size) {
  const UnitGraph graph = make_units(config, microbatch_size);
  if (has_shards(graph)) {
    throw InputError(fmt::format("{}: units that are cut into shards can be neither measured nor partitioned",
                                 config.vocabulary.shards > 1 ? "schedule.vocabulary" : "model.tensor"));
  }
  const auto branches = static_cast<int>(graph.branches.size());
  const auto units = static_cast<int>(graph.branches.front().size());
  return build_network(config, microbatch_size, branches > 1 ? branches * units + 1 : units);
}

std::vector<plan::StageSizes> Network::sizes() const {
  const auto bytes = [](std::size_t words) { return std::uint64_t{words} * sizeof(float); };
  std::vector<plan::StageSizes> result;
  for (int s = 0; std::cmp_less(s, stages.size()); ++s) {
    for (int k = 0; k < std::max(1, static_cast<int>(slices.size())); ++k) {
      const Stage& of = stage(s, k);
      plan::StageSizes size;
      size.activation = bytes(of.output_size());
      size.gradient = size.activation;
      size.stash = bytes(of.stash_size());
      size.gradient_stash = bytes(of.gradient_stash_size());
      size.keys_values = bytes(of.keys_values_size());
      size.keys_values_gradient = bytes(of.keys_values_gradient_size());
      size.weights = bytes(of.weights_size());
      if (of.has_master()) size.master = bytes(of.parameter_size());
      size.has_weights = of.parameter_size() > 0;
      size.has_keys_values = slices.empty() || of.keys_values_size() > 0;
      size.adds_inputs = of.adds_inputs();
      result.push_back(size);
    }
  }
  return result;
}

std::size_t Network::parameter_count() const {
  std::size_t count = 0;
  for (const ParameterSet& set : sets()) count += set.size;
  return count;
}

std::vector<ParameterSet> Network::sets() const {
  std::vector<ParameterSet> all;
  for (int s = 0; std::cmp_less(s, stages.size()); ++s) {
    const Stage& stage = stages[index(s)];
    all.push_back({{s}, stage.parameters(), stage.parameter_size(), stage.precision()});
  }
  for (int s = 0; std::cmp_less(s, stages.size()); ++s) {
    const std::vector<std::size_t> numbers = shared_sets(s);
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      const SharedParameters& shared = stages[index(s)].shared()[k];
      if (numbers[k] == all.size())
        all.push_back({{}, shared.parameters, shared.size, stages[index(s)].precision()});
      ParameterSet& set = all[numbers[k]];
      if (!std::ranges::equal(set.parameters, shared.parameters, {}, &Parameter::size, &Parameter::size))
        throw std::logic_error("stages that share " + shared.name + " have parameters of different sizes");
      set.stages.push_back(s);
    }
  }
  return all;
}

std::vector<std::size_t> Network::shared_sets(int stage) const {
  std::vector<std::string> names;
  std::vector<std::size_t> found;
  for (int s = 0; s <= stage; ++s) {
    for (const SharedParameters& shared : stages[index(s)].shared()) {
      auto at = std::ranges::find(names, shared.name);
      if (at == names.end()) at = names.insert(at, shared.name);
      if (s == stage) found.push_back(stages.size() + static_cast<std::size_t>(at - names.begin()));
    }
  }
  return found;
}

std::vector<plan::SharedWeights> Network::shared_weights() const {
  std::vector<plan::SharedWeights> shared;
  const std::vector<ParameterSet> all = sets();
  for (const ParameterSet& set : std::span(all).subspan(stages.size())) {
    plan::SharedWeights weights{
        .stages = set.stages, .weights = set.weights_size() * sizeof(float), .master = 0};
    if (set.has_master()) weights.master = set.size * sizeof(float);
    shared.push_back(std::move(weights));
  }
  return shared;
}

int Network::whole_stages() const { return parts.empty() ? graph.size() : parts.back().stage + 1; }

int Network::shards() const {
  int max = 1;
  for (const plan::StagePart& part : parts) {
    if (!part.detached) max = std::max(max, part.shard + 1);
  }
  return max;
}

int Network::source_index(int stage) const {
  if (!graph.pred(stage).empty()) return -1;
  if (!parts.empty()) return 0;
  int index = 0;
  for (int s = 0; s < stage; ++s) index += graph.pred(s).empty() ? 1 : 0;
  return index;
}

namespace {

Network cut_units(const ModelConfig& config, const UnitGraph& units, int microbatch_size, int stages,
                  const std::vector<int>& cuts) {
  // BLAS counts in int. Memory limits any real model long before.
  if (units.rows > index(std::numeric_limits<int>::max())) {
    throw InputError("training.microbatch_size: a micro-batch of " + std::to_string(units.rows) +
                     " rows is too large");
  }

  const int branches = static_cast<int>(units.branches.size());
  const int max = static_cast<int>(units.branches[0].size());
  const bool tree = branches > 1;
  if (!tree && (stages < 1 || stages > max)) {
    throw InputError("schedule.stages: " + std::to_string(stages) + " is not between 1 and " +
                     std::to_string(max) + ", the units of the model");
  }
  const int each = tree ? (stages - 1) / branches : stages;
  if (tree && (each < 1 || each > max || each * branches + 1 != stages)) {
    throw InputError(fmt::format(
        "schedule.stages: with model.branches {0} must be {0} * n + 1 with n from 1 to {1}, not {2}",
        branches, max, stages));
  }

  Network network;
  network.config = config;
  network.microbatch_size = microbatch_size;
  StageBuilder builder(network, units);
  for (const std::vector<Unit>& branch : units.branches) {
    const Bounds bounds = make_bounds(branch, index(each), cuts, config.vocabulary);
    if (network.stages.empty()) network.cuts.assign(bounds.begin() + 1, bounds.end() - 1);
    builder.add(branch, bounds);
  }
  builder.finish();
  return network;
}

void require_slices(const ModelConfig& config) {
  if (std::cmp_greater(config.slices, max_slices))
    throw InputError(fmt::format("schedule.slices: {} are more than {}", config.slices, max_slices));
  if (config.slices > option_or(config, "context", config.slices))
    throw InputError(fmt::format("schedule.slices: {} slices of model.context, {} tokens", config.slices,
                                 option(config, "context")));
  if (option_or(config, "context", 0) == 0)
    throw InputError(fmt::format("schedule.slices: does not apply to model.kind {}", config.kind));
}

double flops_of(const ModelConfig& config, Piece::Range tokens) {
  ModelConfig of_slice = config;
  of_slice.slice = tokens;
  const UnitGraph units = make_units(of_slice, 1);
  double all = 0;
  for (const Unit& unit : units.branches.front()) all += flops(unit);
  return all;
}

}  // namespace

std::vector<int> slice_sizes(const ModelConfig& config) {
  require_slices(config);
  const int context = option(config, "context");
  const int count = config.slices;
  if (!config.slice_tokens.empty()) {
    const auto sum = std::accumulate(config.slice_tokens.begin(), config.slice_tokens.end(), std::int64_t{0});
    if (std::cmp_not_equal(config.slice_tokens.size(), count))
      throw InputError(fmt::format("schedule.slice_sizes: {} numbers for {} slices (schedule.slices)",
                                   config.slice_tokens.size(), count));
    if (sum != context)
      throw InputError(
          fmt::format("schedule.slice_sizes: the sum is {}, but model.context has {} tokens", sum, context));
    return config.slice_tokens;
  }
  if (config.slice_sizes == SliceSizes::work) {
    const std::array<int, 2> halves = {context / 2, context - context / 2};
    const std::array<double, 2> work = {flops_of(config, {0, index(halves[0])}),
                                        flops_of(config, {index(halves[0]), index(halves[1])})};
    return even_slices(context, count, fit_work(halves, work));
  }
  std::vector<int> tokens;
  for (int k = 0; k < count; ++k)
    tokens.push_back(static_cast<int>(share_of(index(context), index(k), index(count)).count));
  return tokens;
}

Network build_network(const ModelConfig& config, int microbatch_size, int stages,
                      const std::vector<int>& cuts) {
  const UnitGraph units = make_units(config, microbatch_size);
  const auto cut = [&](const ModelConfig& as, const UnitGraph& into, const std::vector<int>& at) {
    return of_fitting_layers(config, [&] { return cut_units(as, into, microbatch_size, stages, at); });
  };
  Network network = cut(config, units, cuts);
  if (config.slices == 1) return network;
  std::size_t first = 0;
  for (const int count : slice_sizes(config)) {
    network.slice_rows.push_back({first, index(count)});
    first += index(count);
  }
  std::size_t rows = 0;
  ModelConfig of_slice = config;
  for (const Piece::Range& tokens : network.slice_rows) {
    of_slice.slice = tokens;
    const UnitGraph part = make_units(of_slice, microbatch_size);
    rows += part.rows;
    network.slices.push_back(cut(of_slice, part, network.cuts).stages);
  }
  if (rows != units.rows)
    throw InputError(fmt::format("schedule.slices: does not apply to model.kind {}", config.kind));
  return network;
}

std::optional<Network> whole_network(const Network& network) {
  if (network.parts.empty()) return std::nullopt;
  ModelConfig config = network.config;
  for (const NetworkKey& key : find_network(config.kind).keys) {
    if (key.cuts_only) config.options.erase(key.name);
  }
  config.vocabulary = {};
  return build_network(config, network.microbatch_size, 1);
}

std::vector<float> rounded_weights(Precision precision, ConstFloatView parameters) {
  std::vector<float> weights(words(precision, parameters.size()));
  if (precision == Precision::bf16) {
    round_to_bf16(parameters, weights);
  } else {
    std::ranges::copy(parameters, weights.begin());
  }
  return weights;
}

}  // namespace starpipe::model
