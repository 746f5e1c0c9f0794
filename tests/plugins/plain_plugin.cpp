// SPDX-License-Identifier: Apache-2.0
// A plug-in whose only fault is how it was built.
#include "starpipe/plan/registry/plugin.hpp"

STARPIPE_PLUGIN(schedules) { schedules.push_back({"plain", "", "", {}}); }
