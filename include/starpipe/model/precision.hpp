// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace starpipe::model {

/// How the passes of layers store numbers and multiply matrices.
enum class Precision : std::uint8_t {
  fp32,
  tf32,  ///< stores fp32; GPUs multiply matrices with 10 bits of each factor's mantissa
};

std::string_view to_string(Precision precision);

}  // namespace starpipe::model
