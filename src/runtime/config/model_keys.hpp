// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/config/config_key.hpp"

namespace starpipe::runtime::keys {

/// Adds the keys of the sections `model` and `data`, those of all kinds of networks included.
void add_model_keys(std::vector<ConfigKey>& keys);

}  // namespace starpipe::runtime::keys
