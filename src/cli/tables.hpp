// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace starpipe::cli {

/// Rows of cells, the first one the head, in columns aligned at the right.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace starpipe::cli
