// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "starpipe/plan/schedule/job.hpp"

namespace starpipe::plan {

/// One pass of a building block. It runs on `worker` and starts in `cell`; a cell is one unit of time.
struct BlockPass {
  Job job;  ///< micro-batches are numbered from 0 within the block
  int worker = 0;
  int cell = 0;
};

/// The passes of one micro-batch, or of a few. A schedule repeats them every `interval` cells (Controllable
/// Memory, section 2). F, B and W take one cell each; BW takes `fused_cells`. The worker and the cell of each
/// pass express chunks per worker, loop and V layouts, replicas of a stage, and fused or split backward
/// passes.
///
/// A block of split passes may leave W out. Each W then takes the first cell after its B that the other
/// passes leave empty (`Grid::place_weight_gradients`).
struct BuildingBlock {
  int workers = 1;
  int stages = 1;
  int microbatches = 1;
  int interval = 1;
  int fused_cells = 2;
  std::vector<BlockPass> passes;

  /// Throws InputError when repetitions of the block would overlap on a worker (Controllable Memory,
  /// section 2.3), naming the two passes; when a pass comes before a pass that it waits for, naming both; or
  /// when `workers * interval` cells are too many to keep. The stages are a chain.
  void validate() const;

  /// For each worker, equation 1 of Controllable Memory: the sum over its stages of ceil(lifespan /
  /// interval). This bounds the number of stashes that it holds at once, however often the block repeats.
  /// Needs every pass, W included.
  [[nodiscard]] std::vector<int> peak_memory() const;
};

}  // namespace starpipe::plan
