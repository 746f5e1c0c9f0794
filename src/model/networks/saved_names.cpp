// SPDX-License-Identifier: Apache-2.0
#include "model/networks/saved_names.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

constexpr const char* head = "lm_head.weight";

}  // namespace

NetworkKey tied_head_key() {
  return {.name = tied_key,
          .default_value = false,
          .meaning = "True: the head and the token embedding share one table of weights."};
}

StageOp shared_by_head(StageOp op) {
  op.shared = "tokens";
  return op;
}

NetworkKind with_saved_names(NetworkKind kind, const SavedNames& names) {
  kind.weight_name = [names](const std::string& name) -> std::string {
    const auto ends_name = [&](const std::string& end) { return name.ends_with(end); };
    if (std::ranges::any_of(names.not_weights, ends_name)) return "";
    return name.starts_with(names.prefix) || name == head ? name : names.prefix + name;
  };
  kind.complete_weights = [names](std::map<std::string, Tensor>& tensors, const ModelConfig& config) {
    const auto embedding = tensors.find(names.embedding);
    if (embedding == tensors.end()) return;
    if (option<bool>(config, tied_key)) {
      const auto output = tensors.extract(head);
      if (!output.empty() && (output.mapped().shape != embedding->second.shape ||
                              output.mapped().values != embedding->second.values)) {
        throw InputError(
            fmt::format("tensor {}: is not equal to {}; set model.tied: false", head, names.embedding));
      }
    }
    pad_rows(embedding->second, index(option(config, "vocabulary")));
    if (option<bool>(config, tied_key)) return;
    const auto [output, is_tied] = tensors.try_emplace(head, embedding->second);
    if (!is_tied) pad_rows(output->second, index(option(config, "vocabulary")));
  };
  return kind;
}

void pad_rows(Tensor& table, std::size_t rows) {
  if (table.shape.size() != 2 || table.shape[0] == 0 || table.shape[0] >= rows) return;
  const std::size_t known = table.shape[0];
  const std::size_t columns = table.shape[1];
  std::vector<double> sums(columns);
  for (std::size_t i = 0; i < table.values.size(); ++i) {
    sums[i % columns] += static_cast<double>(table.values[i]);
  }
  table.values.reserve(rows * columns);
  for (std::size_t row = known; row < rows; ++row) {
    for (const double sum : sums) {
      table.values.push_back(static_cast<float>(sum / static_cast<double>(known)));
    }
  }
  table.shape[0] = rows;
}

}  // namespace starpipe::model
