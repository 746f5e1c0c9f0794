// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "plan/search/partition.hpp"
#include "starpipe/plan/search/unit_costs.hpp"

namespace starpipe::plan {

// The stages of a partition as other frameworks read them. The units are those of a transformer: the first is
// called "embedding", the last "head", and those between them are its blocks. Throws InputError for other
// units, and for a placement that the framework does not have.

/// The options of Megatron-LM for these stages: `--pipeline-model-parallel-size` and
/// `--pipeline-model-parallel-layout`, a line each. Stage s is on worker s mod `workers`. The layout names an
/// embedding E, a block t and the head with its loss L; `t*3` are three blocks, and | ends a stage.
std::string megatron_stages(std::span<const UnitCosts> units, const Partition& partition, int workers);

/// The section `parallelism` of the TOML configuration of torchtitan 0.2, with `module_fqns_per_model_part`:
/// the names of each stage's modules. Stages are placed in a loop, or two a worker in a V. Later versions of
/// torchtitan take the same lists in Python and call the head's "output" "lm_head"; a comment says so.
std::string torchtitan_stages(std::span<const UnitCosts> units, const Partition& partition, int workers);

}  // namespace starpipe::plan
