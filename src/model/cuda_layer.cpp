// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/cuda_layer.hpp"

#include <utility>

#include "starpipe/model/layer_registries.hpp"

namespace starpipe::model {

bool register_cuda_layer(std::string kind, CudaLayerFactory factory) {
  return detail::add_factory("CUDA layer", std::move(kind), std::move(factory));
}

bool register_cuda_loss(std::string kind, CudaLossFactory factory) {
  return detail::add_factory("CUDA loss", std::move(kind), std::move(factory));
}

}  // namespace starpipe::model
