// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/trained_state.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::size_t absent = std::numeric_limits<std::size_t>::max();

}  // namespace

std::vector<TrainedState::Held> TrainedState::held(bool first_only) const {
  std::vector<Held> found;
  for (int s = 0; std::cmp_less(s, graph_.parameters().size()); ++s) {
    if (graph_.parameters()[index(s)].size == 0) continue;
    const std::vector<int> holders =
        plan::weight_holders(schedule_, graph_.parameters()[index(s)].first_stage());
    for (const int holder : holders) {
      if (first_only && holder != holders.front()) continue;
      const auto find = [&](DataKind kind) {
        const auto& data = graph_.data();
        const auto at = std::ranges::find_if(data, [&](const Datum& datum) {
          return datum.kind == kind && datum.stage == s && datum.worker == holder;
        });
        return at == data.end() ? absent : static_cast<std::size_t>(at - data.begin());
      };
      const std::size_t weights = find(DataKind::weights);
      if (!data_.is_mine(graph_.data()[weights])) continue;
      found.push_back({s, weights, find(DataKind::master), find(DataKind::optimizer_state)});
    }
  }
  return found;
}

void TrainedState::read(const StateReader& read) const {
  for (const auto& [set, weights, master, optimizer] : held(true)) {
    const std::size_t parameters = master == absent ? weights : master;
    data_.read(parameters, "the parameters", [&](std::span<const float> values) {
      const auto of_set = values.first(graph_.parameters()[index(set)].size);
      if (optimizer == absent) {
        read(set, of_set, {});
      } else {
        data_.read(optimizer, "the optimizer's state",
                   [&](std::span<const float> state) { read(set, of_set, state); });
      }
    });
  }
}

void TrainedState::write(const StateWriter& write) const {
  for (const auto& [set, weights, master, optimizer] : held(false)) {
    const std::size_t size = graph_.parameters()[index(set)].size;
    const auto write_both = [&](std::span<float> parameters) {
      parameters = parameters.first(size);
      if (optimizer == absent) {
        write(set, parameters, {});
      } else {
        data_.write(optimizer, "the optimizer's state",
                    [&](std::span<float> state) { write(set, parameters, state); });
      }
    };
    if (master == absent) {
      data_.write(weights, "the parameters", write_both);
      continue;
    }
    data_.write(master, "the parameters", [&](std::span<float> parameters) {
      write_both(parameters);
      const std::vector<float> rounded =
          model::rounded_weights(network_.stages.front().precision(), parameters);
      data_.write(weights, "the weights",
                  [&](std::span<float> values) { std::ranges::copy(rounded, values.begin()); });
    });
  }
}

}  // namespace starpipe::runtime
