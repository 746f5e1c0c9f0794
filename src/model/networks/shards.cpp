// SPDX-License-Identifier: Apache-2.0
#include "model/networks/shards.hpp"

#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::model {

NetworkKey tensor_network_key() {
  return {.name = tensor_key,
          .default_value = 1,
          .meaning =
              "Shards into which each half of a block is cut (tensor parallelism). Their number divides "
              "`heads`, and of llama `kv_heads` and `intermediate`.",
          .interval = from_1_to(1 << 18),
          .cuts_only = true};
}

NetworkKey sums_network_key() {
  return {.name = sums_key,
          .default_value = std::string(sums_by_each),
          .meaning =
              "With `tensor`: where the outputs of shards are added. each: by every shard that reads "
              "them. one: by a stage of its own, on the first shard's worker, whose output the shards "
              "read.",
          .words = {sums_by_each, sums_by_one},
          .cuts_only = true};
}

void require_sums_of_shards(const ModelConfig& config) {
  if (option(config, tensor_key) > 1 || option<std::string>(config, sums_key) == sums_by_each) return;
  throw InputError(fmt::format("model.sums: {} needs shards, but model.tensor is 1",
                               option<std::string>(config, sums_key)));
}

void require_shards_divide(const ModelConfig& config, std::string_view name, int value) {
  const int shards = option(config, tensor_key);
  if (value % shards == 0) return;
  throw InputError(fmt::format("model.tensor: {} does not divide model.{}, {}", shards, name, value));
}

void add_half(Unit& unit, std::size_t shards, const OpsOfShard& ops_of_shard) {
  std::vector<std::vector<StageOp>> half;
  for (std::size_t k = 0; k < shards; ++k) half.push_back(ops_of_shard(k));
  std::vector<StageOp>& first = half.front();
  first.insert(first.begin(), residual_begin());
  first.push_back(residual_end());
  if (shards > 1) {
    unit.halves.push_back(std::move(half));
  } else {
    unit.ops.insert(unit.ops.end(), std::make_move_iterator(first.begin()),
                    std::make_move_iterator(first.end()));
  }
}

StageOp with_pieces(StageOp op, std::size_t shards, std::vector<Piece> pieces) {
  if (shards > 1) op.pieces = std::move(pieces);
  return op;
}

}  // namespace starpipe::model
