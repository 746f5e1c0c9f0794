// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "base/table.hpp"

namespace starpipe::runtime {

/// The columns of the text of `starpipe info`: the name of a fact, and the fact.
inline constexpr std::array info_columns = {TableColumn{.align = Align::left, .least_width = 10},
                                            TableColumn{.align = Align::left}};

/// Facts about the runtime for `starpipe info`: versions, this machine as hwloc sees it, its GPUs, StarPU's
/// build and policies, and the kinds of layers. Under a launcher also this rank's share of the cores; the
/// call is then collective, and starts and ends MPI. Text with one fact a line, or JSON.
std::string describe_runtime(bool json);

}  // namespace starpipe::runtime
