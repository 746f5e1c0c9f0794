// SPDX-License-Identifier: Apache-2.0
// `runtime.device: cuda`: what is refused before anything runs.
#pragma once

#include "starpipe/model/network.hpp"
#include "starpipe/runtime/config.hpp"

namespace starpipe::runtime {

/// Throws InputError naming the key when this program or machine has no GPU for `runtime.device: cuda`, or
/// the configuration asks for what GPUs do not do.
void check_device(const Config& config);

/// Throws InputError when a layer of the network has no kernels for the configured device.
void check_kernels(const Config& config, const model::Network& network);

}  // namespace starpipe::runtime
