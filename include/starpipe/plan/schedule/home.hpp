// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace starpipe::plan {

/// Where the stash of a stage and micro-batch waits from F to B: the third member of a place, h(s, b). It is
/// one of four words, or another worker.
class Home {
 public:
  static const Home worker;  ///< with the worker that computes F
  static const Home
      none;  ///< nowhere: R makes it again (ML at Scale, rematerialisation; 1F1B-R of Separability)
  static const Home
      host;  ///< in the main memory of the worker's host: O takes it there, L brings it back (PipeOffload)
  static const Home disk;  ///< the same on a disk of the worker's host

  constexpr Home() : Home(0) {}
  /// With another worker: O sends it there, L brings it back (BPipe). The worker of F itself is the same home
  /// as `worker`.
  static constexpr Home at(int worker) { return Home(words + worker); }

  /// Returns the worker that `at` gave; nullopt for the four words.
  [[nodiscard]] constexpr std::optional<int> peer() const {
    return code_ >= words ? std::optional(code_ - words) : std::nullopt;
  }

  /// Returns a number for tables: of a word its index in `home_words`, of worker w their number plus w.
  [[nodiscard]] constexpr int code() const { return code_; }
  /// The inverse of `code`. `code`: at least 0.
  static constexpr Home of_code(int code) { return Home(code); }

  friend constexpr auto operator<=>(const Home&, const Home&) = default;

 private:
  static constexpr int words = 4;
  explicit constexpr Home(int code) : code_(code) {}

  int code_;
};
/// The words of homes, by their codes. A home on another worker is written `worker:3`.
inline constexpr std::array<std::string_view, 4> home_words = {"worker", "none", "host", "disk"};
inline constexpr Home Home::worker{0};
inline constexpr Home Home::none{1};
inline constexpr Home Home::host{2};
inline constexpr Home Home::disk{3};

/// Returns true for the homes outside the worker's memory: O copies the stash there, and L copies it back.
constexpr bool is_copied(Home home) { return home != Home::worker && home != Home::none; }
std::string to_string(Home home);
/// Throws InputError for any other text.
Home parse_home(std::string_view text);

}  // namespace starpipe::plan
