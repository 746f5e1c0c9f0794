// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/reordering_json.hpp"

#include <nlohmann/json.hpp>

namespace starpipe::plan {

nlohmann::ordered_json reordering_json(const Reordering& reordering) {
  return {{"worker", reordering.worker}, {"stashes", reordering.held}, {"limit", reordering.limit}};
}

}  // namespace starpipe::plan
