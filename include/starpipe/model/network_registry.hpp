// SPDX-License-Identifier: Apache-2.0
// Registers kinds of networks. A kind is one file, src/model/networks/NAME.cpp. It calls register_network,
// also with its keys of `model:`.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/base/interval.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

/// Layers that are never separated; `schedule.cuts` counts units.
struct Unit {
  std::string name;
  std::vector<StageOp> ops;
  /// The halves of a unit that is cut into shards, in order after `ops`, with the ops of each of their
  /// shards. A shard reads the outputs of all shards of the half or unit before it.
  std::vector<std::vector<std::vector<StageOp>>> halves = {};
  /// True for shards of the vocabulary, which are placed on their own (StagePart::detached).
  bool detached = false;
  /// The way in which a stage joins the outputs of the last half's shards.
  Join join = Join::add;
};

/// A network before it is cut: branches side by side, and the unit that joins their outputs. A chain is one
/// branch and has no join.
struct UnitGraph {
  std::size_t rows = 0;                     ///< of a micro-batch
  std::vector<std::vector<Unit>> branches;  ///< units of each; all branches have the same number of units
  std::size_t branch_inputs = 0;            ///< columns of the data that each branch reads
  Unit join;                                ///< empty with one branch
  std::shared_ptr<const Loss> loss;
};

/// A key of `model:` that a kind of network has. Its values have the type of its default. Kinds whose keys
/// have the same name give it the same type.
struct NetworkKey {
  std::string name;
  OptionValue default_value;
  std::string meaning;                  ///< one sentence
  Interval interval = {};               ///< of numbers, each of a list; whole numbers are at least 0
  std::vector<std::string> words = {};  ///< of text: the values that it may have; empty: any text
  /// True if it changes values only, neither sizes nor times. Emulated runs compute no values and refuse it.
  bool values_only = false;
  /// True if it only affects how the network is cut: files of weights do not depend on it.
  bool cuts_only = false;
};
inline constexpr Interval from_1_to(int max) { return {.min = 1, .max = static_cast<double>(max)}; }

/// Where the numbers of a tensor are in a file of another program.
struct SavedTensor {
  std::string from;  ///< the tensor that has them, by its name in Stage::parameters()
  std::vector<std::size_t>
      shape;                  ///< with fewer rows: the first ones; with more: each is the mean of the rows
  std::string equal_to = {};  ///< a tensor of the file that must have the same numbers; "": none
};

struct NetworkKind {
  std::string name;     ///< the value of `model.kind`
  std::string meaning;  ///< one sentence
  /// The values of `data.kind` that the network reads, its default first. "text" and "tokens" need a key
  /// `context`, the tokens of a sequence. Token ids are below the key `vocabulary`, or below 256 without it.
  /// "synthetic" needs `inputs` and `outputs`, the columns of both, and may have `branches`. These keys are
  /// whole numbers.
  std::vector<std::string> data;
  std::vector<NetworkKey> keys;
  /// Builds the network for micro-batches of `microbatch_size` samples. Each key is in its range. Throws
  /// InputError naming the keys whose values do not fit together.
  std::function<UnitGraph(const ModelConfig& config, std::size_t microbatch_size)> units;
  /// The name in Stage::parameters() of a tensor in a file of another program; "" for one that is not read,
  /// and may have any type. Empty: such files have these names.
  std::function<std::string(const std::string& name)> weight_name = {};
  /// Adds tensors that such files leave out, and rows to tables of fewer tokens, and removes others. The
  /// tensors have the names of Stage::parameters() and their shape in the file already. Empty: files have
  /// all. Throws InputError with the tensor that contradicts the configuration.
  std::function<void(std::map<std::string, SavedTensor>& tensors, const ModelConfig& config)>
      complete_weights = {};
};

/// Adds a kind, from a file-scope initialiser. Returns false if its name is taken, another kind has the same
/// key with another type, a key does not take its own default, or a key that the data needs is missing. The
/// error is then kept (starpipe/base/registration.hpp), and the functions below throw it.
bool register_network(NetworkKind kind);

/// Adds a kind while the program runs, in place of an earlier one of its name. No other thread may use kinds
/// meanwhile. Its data may be empty: it then trains on a data set of the program.
void replace_network(NetworkKind kind);

/// Returns all kinds by name, ascending.
std::vector<NetworkKind> registered_networks();

/// Returns why the key does not take `value` ("0 is not at least 1 and at most 8"), or "".
std::string problem_of(const NetworkKey& key, const OptionValue& value);

/// Throws InputError for an unknown `model.kind`.
const NetworkKind& find_network(std::string_view name);

/// Returns a unit's op for a layer.
StageOp layer_op(const LayerSpec& spec, Precision precision);
inline StageOp residual_begin() { return {StageOp::Kind::residual_begin, nullptr}; }
inline StageOp residual_end() { return {StageOp::Kind::residual_end, nullptr}; }

}  // namespace starpipe::model
