// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/weights_json.hpp"

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

std::vector<int> read_stages(const JsonValue& list, int stages) {
  std::vector<int> read;
  for (std::size_t i = 0; i < list.array().size(); ++i) {
    const JsonValue entry = list.at(i);
    const int stage = entry.whole(0);
    if (stage >= stages) entry.fail(fmt::format("there are {} stages", stages));
    if (!read.empty() && stage <= read.back()) entry.fail("stages must ascend");
    read.push_back(stage);
  }
  return read;
}

}  // namespace

void add_weights(nlohmann::ordered_json& object, const Costs& costs, int stages) {
  for (const SharedWeights& shared : costs.shared) {
    object["shared_weights"].push_back(
        {{"stages", shared.stages}, {"weights", shared.weights}, {"master", shared.master}});
  }
  for (int s = 0; s < stages; ++s) {
    if (!costs.size(s).has_weights) object["stages_without_weights"].push_back(s);
    if (costs.size(s).adds_inputs) object["stages_that_add"].push_back(s);
  }
}

void read_weights(const JsonValue& object, int stages, Costs& costs) {
  if (const auto list = object.find("shared_weights")) {
    constexpr std::array<std::string_view, 3> keys = {"stages", "weights", "master"};
    for (std::size_t i = 0; i < list->array().size(); ++i) {
      const JsonValue entry = list->at(i).object();
      entry.only(keys);
      SharedWeights& shared = costs.shared.emplace_back();
      shared.stages = read_stages(entry.at("stages"), stages);
      if (shared.stages.empty()) entry.at("stages").fail("needs a stage");
      shared.weights = entry.at("weights").bytes();
      shared.master = entry.at("master").bytes();
    }
  }
  const auto for_each_listed = [&](const char* key, const auto& f) {
    const auto list = object.find(key);
    if (!list) return;
    const StageSizes same = costs.sizes.front();
    if (costs.sizes.size() == 1) costs.sizes.assign(index(stages), same);
    for (const int stage : read_stages(*list, stages)) f(stage, costs.sizes[index(stage)], *list);
  };
  for_each_listed("stages_without_weights", [](int stage, StageSizes& sizes, const JsonValue& list) {
    if (sizes.updated() > 0) list.fail(fmt::format("the sizes say that stage {} has weights", stage));
    sizes.has_weights = false;
  });
  for_each_listed("stages_that_add",
                  [](int, StageSizes& sizes, const JsonValue&) { sizes.adds_inputs = true; });
}

}  // namespace starpipe::plan::detail
