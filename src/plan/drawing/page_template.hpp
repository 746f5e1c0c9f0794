// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace starpipe::plan::detail {

/// The page of viewer/ without data, as HTML: the build generates the source. Empty when the program was
/// built without the page.
std::string_view page_template();

/// Stands in the template where the data go, once.
inline constexpr std::string_view data_mark = "STARPIPE_PAGE_DATA";

}  // namespace starpipe::plan::detail
