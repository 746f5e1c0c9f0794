// SPDX-License-Identifier: Apache-2.0
#include "model/data/slice_rows.hpp"

#include <algorithm>
#include <cstddef>

#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

// `load(whole, all)` writes the rows of a micro-batch of the data set.
template <class Load>
void load_rows(const Network& network, int stage, int microbatch, std::size_t columns, FloatView out,
               Load load) {
  if (network.slices.empty()) return load(microbatch, out);
  const auto slices = static_cast<int>(network.slices.size());
  std::vector<float> all(network.stages[index(stage)].rows() * columns);
  load(microbatch / slices, FloatView(all));
  const auto [first, count] = network.slice_rows[index(microbatch % slices)];
  const std::size_t sequences = index(network.microbatch_size);
  const std::size_t context = network.stages[index(stage)].rows() / sequences;
  for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
    const auto rows = FloatView(all).subspan((sequence * context + first) * columns, count * columns);
    std::ranges::copy(rows, out.subspan(sequence * count * columns).begin());
  }
}

}  // namespace

void load_input_rows(const Dataset& data, const Network& network, int stage, int step, int microbatch,
                     FloatView out) {
  const Stage& source = network.stages[index(stage)];
  load_rows(network, stage, microbatch, source.input_columns()[0], out, [&](int whole, FloatView all) {
    load_input(data, source, step, whole, network.source_index(stage), all);
  });
}

void load_target_rows(const Dataset& data, const Network& network, int stage, int step, int microbatch,
                      FloatView out) {
  load_rows(network, stage, microbatch, network.stages[index(stage)].target_columns(), out,
            [&](int whole, FloatView all) { data.target(step, whole, all); });
}

std::vector<float> losses_of_whole(const Network& network, std::span<const float> losses) {
  if (network.slices.empty()) return {losses.begin(), losses.end()};
  const std::size_t slices = network.slices.size();
  const int sink = network.graph.sink();
  std::vector<float> whole(losses.size() / slices, 0.0F);
  for (std::size_t b = 0; b < losses.size(); ++b) {
    const auto rows = static_cast<float>(network.stage(sink, static_cast<int>(b)).rows());
    whole[b / slices] += rows / static_cast<float>(network.stages[index(sink)].rows()) * losses[b];
  }
  return whole;
}

}  // namespace starpipe::model
