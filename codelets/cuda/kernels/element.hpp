// SPDX-License-Identifier: Apache-2.0
// What the elements of arrays are, by precision.
#pragma once

#include <memory>

#include <cuda_bf16.h>

#include "starpipe/model/precision.hpp"

namespace starpipe::model::cuda {

using Bf16 = __nv_bfloat16;

/// Words of an array of T and one of floats behind it.
template <class T>
constexpr std::size_t words_of(std::size_t elements, std::size_t floats = 0) {
  return words(sizeof(T) == sizeof(Bf16) ? Precision::bf16 : Precision::fp32, elements, floats);
}

/// The floats behind an array of T.
template <class T, class View>
auto* floats_behind(const View& memory, std::size_t elements) {
  return memory.template as<float>() + words_of<T>(elements);
}

/// A twin, as its base, whose elements are those of the precision.
template <class Base, template <class> class Twin, class... Arguments>
std::shared_ptr<const Base> make_twin(Precision precision, const Arguments&... arguments) {
  if (precision == Precision::bf16) return std::make_shared<Twin<Bf16>>(arguments...);
  return std::make_shared<Twin<float>>(arguments...);
}

}  // namespace starpipe::model::cuda
