// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/config/config_key.hpp"

namespace starpipe::runtime::keys {

/// Adds the keys of the section `runtime`.
void add_runtime_keys(std::vector<ConfigKey>& keys);

}  // namespace starpipe::runtime::keys
