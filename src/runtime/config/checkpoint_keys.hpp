// SPDX-License-Identifier: Apache-2.0
// The keys of `checkpoint:`.
#pragma once

#include <vector>

#include "runtime/config/config_key.hpp"

namespace starpipe::runtime::keys {

void add_checkpoint_keys(std::vector<ConfigKey>& keys);

}  // namespace starpipe::runtime::keys
