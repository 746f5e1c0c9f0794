// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/precision.hpp"

namespace starpipe::model {

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
  }
  return "?";
}

}  // namespace starpipe::model
