// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starpipe::plan {

/// What a job computes for one stage and micro-batch.
enum class Pass : std::uint8_t {
  F,   ///< forward
  B,   ///< gradient with respect to the stage's input
  W,   ///< gradient with respect to the stage's weights
  BW,  ///< B and W fused, for schedules that do not split the backward pass
};

inline constexpr std::size_t pass_count = 4;

/// "F", "B", "W" or "BW".
std::string_view to_string(Pass pass);

/// The inverse of `to_string`. Throws InputError for any other word.
Pass parse_pass(std::string_view word);

/// One job: (s, b, d) of Unifying Schemes, "Formal definitions of distributed schedules".
struct Job {
  int stage = 0;
  int microbatch = 0;
  Pass pass = Pass::F;

  friend auto operator<=>(const Job&, const Job&) = default;
};

/// For messages and traces: "F(2,5)" is the forward pass of stage 2 on micro-batch 5.
std::string to_string(const Job& job);

/// w(s, b, d): who holds the weights (the source of truth) and who computes.
struct Placement {
  int weights = 0;
  int compute = 0;

  friend bool operator==(const Placement&, const Placement&) = default;
};

}  // namespace starpipe::plan
