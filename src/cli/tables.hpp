// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starpipe::cli {

/// "512 B", "1.5 MiB".
std::string bytes_text(std::uint64_t count);

/// Rows of cells, the first one the head, in columns aligned at the right.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace starpipe::cli
