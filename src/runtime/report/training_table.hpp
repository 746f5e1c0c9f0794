// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/report/measurement.hpp"
#include "runtime/report/train_record.hpp"

namespace starpipe::runtime {

/// Predicted versus measured, for people.
std::string training_table(const plan::Schedule& schedule, const plan::Timeline& predicted,
                           const MeasuredRun& measured, const Measurement& measurement,
                           const TrainRecord& record);

}  // namespace starpipe::runtime
