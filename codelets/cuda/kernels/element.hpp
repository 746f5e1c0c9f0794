// SPDX-License-Identifier: Apache-2.0
// The type of an array's elements, which follows from the precision.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <cuda_bf16.h>

#include "starpipe/model/cuda_layer.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model::cuda {

using Bf16 = __nv_bfloat16;

/// Words of 4 bytes of an array of `elements` T with an array of `floats` floats behind it.
template <class T>
constexpr std::size_t words_of(std::size_t elements, std::size_t floats = 0) {
  return words(sizeof(T) == sizeof(Bf16) ? Precision::bf16 : Precision::fp32, elements, floats);
}

/// Returns the array of floats behind an array of `elements` T.
template <class T, class View>
auto* floats_behind(const View& memory, std::size_t elements) {
  return memory.template as<float>() + words_of<T>(elements);
}

/// Calls function(T()) with the elements' type T of the precision.
template <class Function>
auto with_element(Precision precision, Function function) {
  return precision == Precision::bf16 ? function(Bf16()) : function(float());
}

/// Makes a CUDA implementation of a layer or loss: Implementation<T>, with T of the precision.
template <class Base, template <class> class Implementation, class... Arguments>
std::shared_ptr<const Base> make_for(Precision precision, const Arguments&... arguments) {
  return with_element(precision, [&]<class T>(T) -> std::shared_ptr<const Base> {
    return std::make_shared<Implementation<T>>(arguments...);
  });
}

/// Registers Implementation<T>(spec) as the CUDA implementation of a kind of layer.
template <template <class> class Implementation>
bool register_implementation(std::string kind) {
  return register_cuda_layer(std::move(kind), [](const LayerSpec& spec, Precision precision) {
    return make_for<CudaLayer, Implementation>(precision, spec);
  });
}
/// Registers Implementation<T>(rows, columns) as the CUDA implementation of a kind of loss.
template <template <class> class Implementation>
bool register_loss_implementation(std::string kind) {
  return register_cuda_loss(std::move(kind), [](std::size_t rows, std::size_t columns, Precision precision) {
    return make_for<CudaLoss, Implementation>(precision, rows, columns);
  });
}

}  // namespace starpipe::model::cuda
