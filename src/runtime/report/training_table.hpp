// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "runtime/report/measurement.hpp"
#include "runtime/report/train_record.hpp"

namespace starpipe::runtime {

/// The tables that `train` prints: predicted beside measured values, of the whole step, of each worker and of
/// each GPU.
std::string training_table(const plan::ComparedRun& run, std::span<const WorkerRecord> workers,
                           const TrainRecord& record);

}  // namespace starpipe::runtime
