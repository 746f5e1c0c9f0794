// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/search_problem.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

std::string_view to_string(Layout layout) { return layout_words[index(layout)]; }

Layout parse_layout(std::string_view word) {
  for (const Layout layout : {Layout::loop, Layout::v}) {
    if (word == to_string(layout)) return layout;
  }
  throw InputError(fmt::format("unknown layout '{}' (v or loop)", word));
}

std::vector<int> layout_workers(Layout layout, int workers, int chunks) {
  std::vector<int> worker_of;
  for (int c = 0; c < chunks; ++c) {
    for (int i = 0; i < workers; ++i) {
      worker_of.push_back(layout == Layout::v && c % 2 == 1 ? workers - 1 - i : i);
    }
  }
  return worker_of;
}

}  // namespace starpipe::plan
