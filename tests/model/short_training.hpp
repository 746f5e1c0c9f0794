// SPDX-License-Identifier: Apache-2.0
// Short trainings of networks that are cut in different ways, and their whole weights.
#pragma once

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

}  // namespace starpipe::model::testing
