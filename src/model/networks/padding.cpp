// SPDX-License-Identifier: Apache-2.0
#include "model/networks/padding.hpp"

#include <vector>

namespace starpipe::model {

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
