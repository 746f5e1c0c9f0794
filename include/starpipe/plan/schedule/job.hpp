// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starpipe::plan {

/// The work of a job for its stage and micro-batch.
enum class Pass : std::uint8_t {
  F,   ///< forward
  B,   ///< gradient with respect to the stage's input
  W,   ///< gradient with respect to the stage's weights
  BW,  ///< B and W fused, for schedules that do not split the backward pass
  R,   ///< F again, from the stage's inputs: it makes the stash that F did not keep
  O,   ///< offload: copies the stash from its worker to its home
  L,   ///< reload: copies the stash from its home to the worker of B
};

/// The words of the passes, in the order of the enum.
inline constexpr std::array<std::string_view, 7> pass_words = {"F", "B", "W", "BW", "R", "O", "L"};
inline constexpr std::size_t pass_count = pass_words.size();

/// Returns the pass's word.
inline std::string_view to_string(Pass pass) { return pass_words[static_cast<std::size_t>(pass)]; }

/// True for the pass that computes the gradient with respect to the stage's input: B or BW.
constexpr bool gives_input_gradient(Pass pass) { return pass == Pass::B || pass == Pass::BW; }
/// True for the pass that adds to the gradient of the weights, and is the last to read the stash: W or BW.
constexpr bool gives_weight_gradient(Pass pass) { return pass == Pass::W || pass == Pass::BW; }

/// True for a copy between a worker and a home. A copy takes no time of the worker, only of one of its two
/// copy channels. From a worker to another one it takes a channel of both.
constexpr bool is_copy(Pass pass) { return pass == Pass::O || pass == Pass::L; }

/// The copy channels of a worker, by what they do to its memory: `out` frees it, `in` takes it.
enum class Channel : std::uint8_t { out, in };

/// Reads the word that `to_string` writes. Throws InputError for any other word.
Pass parse_pass(std::string_view word);

/// One job: (s, b, d) of Unifying Schemes, "Formal definitions of distributed schedules".
struct Job {
  int stage = 0;
  int microbatch = 0;
  Pass pass = Pass::F;

  friend auto operator<=>(const Job&, const Job&) = default;
};

/// Returns a text for messages and traces: "F(2,5)" is the forward pass of stage 2 on micro-batch 5.
std::string to_string(const Job& job);

/// w(s, b, d): who holds the weights (the source of truth) and who computes.
struct Placement {
  int weights = 0;
  int compute = 0;

  friend bool operator==(const Placement&, const Placement&) = default;
};

}  // namespace starpipe::plan
