// SPDX-License-Identifier: Apache-2.0
// The library's umbrella header: Runtime, Trainer and predict (docs/library.md), the layers, losses and
// networks of a program's own, named schedules and their simulation.
#pragma once

#include "starpipe/model/layer.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/api/trainer.hpp"
#include "starpipe/version.hpp"
