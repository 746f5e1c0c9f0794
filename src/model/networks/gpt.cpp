// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/networks/saved_names.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

constexpr double deviation = 0.02;  // of GPT-2's start values

/// GPT-2, whose head may be tied; parameters have the names and start values of Hugging Face's
/// GPT2LMHeadModel.
UnitGraph gpt_units(const ModelConfig& config, std::size_t microbatch_size) {
  const int blocks = option(config, "layers");
  const int width = option(config, "hidden");
  const int heads = option(config, "heads");
  const int context = option(config, "context");
  const int vocabulary = option(config, "vocabulary");
  if (width % heads != 0) {
    throw InputError(fmt::format("model.heads: {} does not divide model.hidden, {}", heads, width));
  }
  if (heads % option(config, tensor_key) != 0) {
    throw InputError(
        fmt::format("model.tensor: {} does not divide model.heads, {}", option(config, tensor_key), heads));
  }
  const std::size_t hidden = index(width);
  const std::size_t rows = microbatch_size * index(context);
  // Each block adds to the residual stream twice; this keeps its variance from growing with the depth.
  const double projection = deviation / std::sqrt(2.0 * blocks);

  const auto layer = [&](const LayerSpec& spec) { return layer_op(spec, config.precision); };
  const auto norm = [&](const std::string& name) { return layer({"layernorm", name, rows, hidden, {}}); };
  const auto linear = [&](const std::string& name, std::size_t inputs, std::size_t outputs, double spread,
                          bool bias = true) {
    return layer({"linear",
                  name,
                  rows,
                  inputs,
                  {{"outputs", static_cast<double>(outputs)},
                   {"conv1d", 1},
                   {"bias", bias ? 1 : 0},
                   {"deviation", spread}}});
  };

  const bool tied = option<bool>(config, tied_key);
  LayerSpec tokens = {
      "embedding",
      "transformer",
      rows,
      1,
      {{"vocabulary", vocabulary}, {"context", context}, {"outputs", width}, {"deviation", deviation}}};
  std::vector<Unit> units;
  if (tied) {
    // The head shares the tokens' table. So the positions are a layer of their own.
    tokens.name = "transformer.wte";
    tokens.options.erase("context");
    units.push_back(
        {"embedding",
         {shared_by_head(layer(tokens)), layer({"positions",
                                                "transformer.wpe",
                                                rows,
                                                hidden,
                                                {{"context", context}, {"deviation", deviation}}})}});
  } else {
    units.push_back({"embedding", {layer(tokens)}});
  }
  // Shards of half a block, as Megatron-LM cuts it (arXiv 1909.08053, section 3): a shard has heads, or
  // columns of the first and rows of the second matrix of the MLP. The outputs of the shards add up to that
  // of the half: shard 0 has the residual connection and the bias.
  const std::size_t shards = index(option(config, tensor_key));
  const auto shards_of_half = [&](const std::string& norm_name, const LayerSpec& between, std::size_t wide,
                                  std::size_t blocks_of_first, const std::string& first,
                                  const std::string& second) {
    const std::size_t inner = between.kind == "attention" ? hidden : wide;
    std::vector<std::vector<StageOp>> result;
    for (std::size_t k = 0; k < shards; ++k) {
      LayerSpec part = between;
      part.columns = wide / shards;
      if (part.kind == "attention") part.options["heads"] = static_cast<double>(index(heads) / shards);
      std::vector<StageOp> ops = {shared_as(norm_name, norm(norm_name)),
                                  pieces(linear(first, hidden, wide / shards, deviation),
                                         {columns_piece(hidden, wide, k, shards, blocks_of_first),
                                          vector_piece(wide, k, shards, blocks_of_first)}),
                                  layer(part),
                                  pieces(linear(second, inner / shards, hidden, projection, k == 0),
                                         {rows_piece(inner, hidden, k, shards)})};
      if (k == 0) {
        ops.back().pieces.emplace_back();  // the bias is whole
        ops.insert(ops.begin(), residual_begin());
        ops.push_back(residual_end());
      }
      result.push_back(std::move(ops));
    }
    return result;
  };
  for (int n = 0; n < blocks; ++n) {
    const std::string block = "transformer.h." + std::to_string(n);
    if (shards > 1) {
      Unit unit = {"block " + std::to_string(n), {}};
      unit.groups.push_back(shards_of_half(
          block + ".ln_1",
          {"attention", block + ".attn", rows, 3 * hidden, {{"heads", heads}, {"context", context}}},
          3 * hidden, 3, block + ".attn.c_attn", block + ".attn.c_proj"));
      unit.groups.push_back(shards_of_half(block + ".ln_2",
                                           {"gelu", block + ".mlp.act", rows, 4 * hidden, {}}, 4 * hidden, 1,
                                           block + ".mlp.c_fc", block + ".mlp.c_proj"));
      units.push_back(std::move(unit));
      continue;
    }
    units.push_back(
        {"block " + std::to_string(n),
         {residual_begin(), norm(block + ".ln_1"),
          linear(block + ".attn.c_attn", hidden, 3 * hidden, deviation),
          layer({"attention", block + ".attn", rows, 3 * hidden, {{"heads", heads}, {"context", context}}}),
          linear(block + ".attn.c_proj", hidden, hidden, projection), residual_end(), residual_begin(),
          norm(block + ".ln_2"), linear(block + ".mlp.c_fc", hidden, 4 * hidden, deviation),
          layer({"gelu", block + ".mlp.act", rows, 4 * hidden, {}}),
          linear(block + ".mlp.c_proj", 4 * hidden, hidden, projection), residual_end()}});
  }
  StageOp head = layer(
      {"linear", "lm_head", rows, hidden, {{"outputs", vocabulary}, {"bias", 0}, {"deviation", deviation}}});
  if (tied) head = shared_by_head(std::move(head));
  units.push_back({"head", {norm("transformer.ln_f"), std::move(head)}});

  UnitGraph graph;
  graph.rows = rows;
  graph.branches = {std::move(units)};
  graph.branch_inputs = 1;
  graph.loss = make_loss("cross_entropy", rows, index(vocabulary), config.precision);
  return graph;
}

const bool registered = register_network(with_saved_names(
    {.name = "gpt",
     .meaning = "GPT-2.",
     .data = {std::string(text_data), std::string(tokens_data)},
     .keys = {{"layers", 4, "Number of transformer blocks.", from_1_to(1 << 16)},
              {"hidden", 128, "Columns of the hidden activations.", from_1_to(1 << 18)},
              {"heads", 4, "Attention heads of a block; they divide `hidden`.", from_1_to(1 << 18)},
              {"context", 128, "Tokens of a sequence.", from_1_to(1 << 20)},
              {"vocabulary", byte_values,
               "Number of tokens: ids are 0 to `vocabulary` - 1. At least 256 with `data.kind: text`.",
               from_1_to(1 << 24)},
              tied_head_key(),
              tensor_shards_key()},
     .units = gpt_units},
    // Old versions of transformers saved causal masks among the weights.
    {.prefix = "transformer.",
     .embedding = "transformer.wte.weight",
     .not_weights = {".attn.bias", ".attn.masked_bias"}}));

}  // namespace
}  // namespace starpipe::model
