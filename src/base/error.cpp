// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/error.hpp"

#include <fmt/format.h>

namespace starpipe {

void require(int status, std::string_view library, std::string_view action, std::string_view object,
             std::string_view reason) {
  if (status == 0) return;
  throw std::runtime_error(fmt::format("{}: {} {} failed ({})", library, action, object,
                                       reason.empty() ? fmt::format("error {}", status) : reason));
}

void require_input(bool good, std::string_view subject, std::string_view message) {
  if (!good) throw InputError(fmt::format("{}: {}", subject, message));
}

}  // namespace starpipe
