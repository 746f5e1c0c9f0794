// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/report/measurement.hpp"
#include "runtime/report/train_record.hpp"

namespace starpipe::runtime {

/// The tables that `train` prints: predicted beside measured values, of the whole step, of each worker and of
/// each GPU.
std::string training_table(const plan::Schedule& schedule, const plan::Timeline& predicted,
                           const MeasuredRun& measured, const Measurement& measurement,
                           const TrainRecord& record);

}  // namespace starpipe::runtime
