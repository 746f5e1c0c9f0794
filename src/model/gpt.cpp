// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "model/networks.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::model {
namespace {

constexpr std::size_t kVocabulary = 256;  // bytes
constexpr double kDeviation = 0.02;       // GPT-2's start values

}  // namespace

/// GPT-2 with an untied head, names and start values of Hugging Face's GPT2LMHeadModel.
UnitGraph gpt_units(const ModelConfig& config, std::size_t microbatch_size) {
  require_range("model.layers", config.layers, 1, 1 << 16);
  require_range("model.hidden", config.hidden, 1, 1 << 18);
  require_range("model.heads", config.heads, 1, 1 << 18);
  require_range("model.context", config.context, 1, 1 << 20);
  if (config.hidden % config.heads != 0) {
    throw InputError("model.heads: " + std::to_string(config.heads) + " does not divide model.hidden, " +
                     std::to_string(config.hidden));
  }
  const auto context = static_cast<std::size_t>(config.context);
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const std::size_t rows = microbatch_size * context;
  // Each block adds to the residual stream twice; this keeps its variance from growing with the depth.
  const double projection = kDeviation / std::sqrt(2.0 * config.layers);

  const auto layer = [&](const LayerSpec& spec) { return layer_op(spec, config.precision); };
  const auto norm = [&](const std::string& name) { return layer({"layernorm", name, rows, hidden, {}}); };
  const auto linear = [&](const std::string& name, std::size_t inputs, std::size_t outputs,
                          double deviation) {
    return layer({"linear",
                  name,
                  rows,
                  inputs,
                  {{"outputs", static_cast<double>(outputs)}, {"conv1d", 1}, {"deviation", deviation}}});
  };

  std::vector<Unit> units;
  units.push_back({"embedding",
                   {layer({"embedding",
                           "transformer",
                           rows,
                           1,
                           {{"vocabulary", kVocabulary},
                            {"context", config.context},
                            {"outputs", config.hidden},
                            {"deviation", kDeviation}}})}});
  for (int n = 0; n < config.layers; ++n) {
    const std::string block = "transformer.h." + std::to_string(n);
    units.push_back(
        {"block " + std::to_string(n),
         {residual_begin(), norm(block + ".ln_1"),
          linear(block + ".attn.c_attn", hidden, 3 * hidden, kDeviation),
          layer({"attention",
                 block + ".attn",
                 rows,
                 3 * hidden,
                 {{"heads", config.heads}, {"context", config.context}}}),
          linear(block + ".attn.c_proj", hidden, hidden, projection), residual_end(), residual_begin(),
          norm(block + ".ln_2"), linear(block + ".mlp.c_fc", hidden, 4 * hidden, kDeviation),
          layer({"gelu", block + ".mlp.act", rows, 4 * hidden, {}}),
          linear(block + ".mlp.c_proj", 4 * hidden, hidden, projection), residual_end()}});
  }
  units.push_back({"head",
                   {norm("transformer.ln_f"),
                    layer({"linear",
                           "lm_head",
                           rows,
                           hidden,
                           {{"outputs", kVocabulary}, {"bias", 0}, {"deviation", kDeviation}}})}});

  UnitGraph graph;
  graph.rows = rows;
  graph.legs = {std::move(units)};
  graph.leg_inputs = 1;
  graph.loss = make_loss("cross_entropy", rows, kVocabulary, config.precision);
  return graph;
}

}  // namespace starpipe::model
