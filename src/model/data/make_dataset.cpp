// SPDX-License-Identifier: Apache-2.0
#include "model/data/make_dataset.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/data/sequences.hpp"
#include "model/data/synthetic.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model {
namespace {

std::unique_ptr<Dataset> open_dataset(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                      std::uint64_t seed, bool is_validation) {
  const std::vector<std::string>& kinds = find_network(model.kind).data;
  if (std::ranges::find(kinds, data.kind) == kinds.end()) {
    throw InputError(fmt::format("data.kind: {} does not fit model.kind {}, which reads {}", data.kind,
                                 model.kind, fmt::join(kinds, " or ")));
  }
  if (data.kind == synthetic_data)
    return make_synthetic_dataset(model, batch.microbatch_size, seed, is_validation);
  if (data.path.empty()) {
    throw InputError(fmt::format("data.{}: is needed for data.kind {}{}",
                                 is_validation ? "validation" : "path", data.kind,
                                 is_validation ? " to evaluate" : ""));
  }
  const int vocabulary = option_or(model, "vocabulary", byte_values);
  if (data.kind == text_data && vocabulary < byte_values) {
    throw InputError(fmt::format("model.vocabulary: {} is less than {}, which data.kind text needs",
                                 vocabulary, byte_values));
  }
  return make_sequence_dataset(data, index(vocabulary), index(option(model, "context")), batch, seed);
}

}  // namespace

void require_data_sizes(const Network& network, std::string_view data_kind) {
  const ModelConfig& model = network.config;
  const bool synthetic = data_kind == synthetic_data;
  const std::size_t samples = index(network.microbatch_size);
  const std::size_t rows = synthetic ? samples : samples * index(option(model, "context"));
  const int branches = synthetic ? option_or(model, "branches", 1) : 1;
  const std::size_t inputs = synthetic ? index(option(model, "inputs") / branches) : 1;
  const std::size_t outputs = synthetic ? index(option(model, "outputs")) : 1;
  const auto require = [&](std::string_view what, std::array<std::size_t, 2> reads,
                           std::array<std::size_t, 2> gives) {
    if (reads == gives) return;
    throw InputError(fmt::format("model.kind: the {} of {} reads {} of a micro-batch, data.kind {} has {}",
                                 what, model.kind, fmt::join(reads, " x "), data_kind,
                                 fmt::join(gives, " x ")));
  };
  int sources = 0;
  bool has_target = false;
  for (int s = 0; s < network.graph.size(); ++s) {
    const Stage& stage = network.stages[index(s)];
    if (network.source_index(s) >= 0) {
      require(fmt::format("source {}", s), {stage.rows(), stage.input_columns()[0]}, {rows, inputs});
      sources = std::max(sources, network.source_index(s) + 1);  // shards read the same data
    }
    if (stage.target_columns() == 0) continue;
    require(stage.is_sink() ? "sink" : fmt::format("stage {}", s), {stage.rows(), stage.target_columns()},
            {rows, outputs});
    has_target = true;
  }
  if (!has_target) require("sink", {rows, 0}, {rows, outputs});
  if (synthetic && sources != branches) {
    throw InputError(fmt::format("model.kind: {} has {} sources, data.kind {} is for {} (model.branches)",
                                 model.kind, sources, data_kind, branches));
  }
}

std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                      std::uint64_t seed) {
  return open_dataset(data, model, batch, seed, false);
}

std::unique_ptr<Dataset> make_validation(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                         std::uint64_t seed) {
  DataConfig validation = data;
  validation.path = data.validation;
  validation.order = SampleOrder::sequential;
  return open_dataset(validation, model, batch, seed, true);
}

}  // namespace starpipe::model
