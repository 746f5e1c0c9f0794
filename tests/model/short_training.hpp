// SPDX-License-Identifier: Apache-2.0
// Short trainings of networks that are cut in different ways, and the distance of their weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "model/reference.hpp"
#include "model/weights.hpp"
#include "starpipe/model/safetensors.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/folder.hpp"

namespace starpipe::model::testing {

/// Three steps of three micro-batches.
inline ReferenceRun train(const Network& network) {
  openblas_set_num_threads(1);
  return train_reference(network, *data_for(network, 3), {}, start_parameters(network, 1), 3, 3);
}

using Tensors = std::map<std::string, Tensor>;

/// Returns the whole tensors of a network whose parameters are shards.
inline Tensors whole_tensors(const Network& network, const std::vector<Floats>& parameters) {
  const Folder folder;
  save_weights(folder / "w.safetensors", network, parameters);
  return read_safetensors(folder / "w.safetensors", nullptr, {});
}

/// Returns the largest distance of a tensor from the same one in `b`, relative to its size.
inline double distance(const Tensors& a, const Tensors& b) {
  double largest = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const Tensor& other = b.at(name);
    EXPECT_EQ(tensor.shape, other.shape) << name;
    double difference = 0;
    double size = 0;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      difference += std::pow(static_cast<double>(tensor.values[i] - other.values[i]), 2);
      size += std::pow(static_cast<double>(other.values[i]), 2);
    }
    if (size > 0) largest = std::max(largest, std::sqrt(difference / size));
  }
  return largest;
}

}  // namespace starpipe::model::testing
