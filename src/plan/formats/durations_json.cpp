// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/durations_json.hpp"

#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"

namespace starpipe::plan {

nlohmann::ordered_json durations_json(const Durations& durations) {
  nlohmann::ordered_json json;
  for (const auto& [name, time] : pass_times) json[name] = detail::number(durations.*time);
  return json;
}

}  // namespace starpipe::plan
