// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

inline constexpr std::uint32_t no_datum = std::numeric_limits<std::uint32_t>::max();

/// The key of a datum: kind, stage, micro-batch and a fourth number where these three are ambiguous. For
/// weights, accumulators and host-filled data it is the writer; for a gradient, the stage that writes it;
/// else 0.
using DatumKey = std::tuple<DataKind, int, int, int>;

/// The numbers of data by their keys. Most data of a micro-batch are the only ones of their kind and stage: a
/// table has these, as a tree of all of them would be larger than the graph.
class DatumNumbers {
 public:
  DatumNumbers(int stages, int microbatches)
      : stages_(index(stages)),
        microbatches_(index(microbatches)),
        rows_((index(DataKind::gradient_stash) + 1) * stages_) {}

  /// Returns true if the key is new.
  bool add(const DatumKey& key, std::uint32_t number) {
    const auto& [kind, stage, microbatch, fourth] = key;
    if (stage >= 0 && microbatch >= 0) {
      Row& row = rows_[row_of(kind, stage)];
      row.resize(microbatches_);
      Entry& entry = row[index(microbatch)];
      if (entry.number == no_datum) {
        entry = {number, fourth};
        return true;
      }
    }
    return find(key) == no_datum && others_.emplace(key, number).second;
  }

  /// Returns the number of a datum; `no_datum` if there is none with this key.
  [[nodiscard]] std::uint32_t find(const DatumKey& key) const {
    const auto& [kind, stage, microbatch, fourth] = key;
    if (stage >= 0 && microbatch >= 0) {
      const Row& row = rows_[row_of(kind, stage)];
      if (!row.empty() && row[index(microbatch)].fourth == fourth) return row[index(microbatch)].number;
    }
    const auto found = others_.find(key);
    return found == others_.end() ? no_datum : found->second;
  }

 private:
  struct Entry {
    std::uint32_t number = no_datum;
    int fourth = 0;  // of the key
  };

  using Row = std::vector<Entry>;  // by micro-batch; empty while there is no datum of the kind and stage

  [[nodiscard]] std::size_t row_of(DataKind kind, int stage) const {
    return index(kind) * stages_ + index(stage);
  }

  std::size_t stages_;
  std::size_t microbatches_;
  std::vector<Row> rows_;
  std::map<DatumKey, std::uint32_t> others_;
};

}  // namespace starpipe::runtime
