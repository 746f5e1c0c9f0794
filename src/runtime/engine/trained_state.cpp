// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/trained_state.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::runtime {

std::vector<TrainedState::Held> TrainedState::held(bool first_only) const {
  std::vector<Held> found;
  for (int s = 0; std::cmp_less(s, graph_.parameters().size()); ++s) {
    if (graph_.parameters()[index(s)].size == 0) continue;
    const std::vector<int> holders =
        plan::weight_holders(schedule_, graph_.parameters()[index(s)].first_stage());
    for (const int holder : holders) {
      if (first_only && holder != holders.front()) continue;
      const std::size_t weights = graph_.find(DataKind::weights, s, holder).value();
      if (!data_.is_mine(graph_.data()[weights])) continue;
      found.push_back({s, weights, graph_.find(DataKind::master, s, holder),
                       graph_.find(DataKind::optimizer_state, s, holder)});
    }
  }
  return found;
}

void TrainedState::read(const StateReader& read) const {
  for (const auto& [set, weights, master, optimizer] : held(true)) {
    data_.read(master.value_or(weights), "the parameters", [&](std::span<const float> values) {
      const auto of_set = values.first(graph_.parameters()[index(set)].size);
      if (!optimizer) {
        read(set, of_set, {});
      } else {
        data_.read(*optimizer, "the optimizer's state",
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
      if (!optimizer) {
        write(set, parameters, {});
      } else {
        data_.write(*optimizer, "the optimizer's state",
                    [&](std::span<float> state) { write(set, parameters, state); });
      }
    };
    if (!master) {
      data_.write(weights, "the parameters", write_both);
      continue;
    }
    data_.write(*master, "the parameters", [&](std::span<float> parameters) {
      write_both(parameters);
      const std::vector<float> rounded =
          model::rounded_weights(network_.stages.front().precision(), parameters);
      data_.write(weights, "the weights",
                  [&](std::span<float> values) { std::ranges::copy(rounded, values.begin()); });
    });
  }
}

}  // namespace starpipe::runtime
