// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starpipe::plan {

/// The cost of a transfer that has its link for itself.
struct Link {
  double alpha = 0;  ///< time of each transfer, its latency
  double beta = 0;   ///< time of each byte, the inverse of the bandwidth

  [[nodiscard]] double time(std::uint64_t bytes) const { return alpha + beta * static_cast<double>(bytes); }
  [[nodiscard]] bool takes_time() const { return alpha > 0 || beta > 0; }
  friend bool operator==(const Link&, const Link&) = default;
};

/// How transfers through the same port delay each other.
enum class Sharing : std::uint8_t {
  none,      ///< they do not
  in_order,  ///< a port carries the bytes of one transfer at a time, first come, first served
  fair,      ///< the transfers under way share the bandwidth of each port, max-min fairly
};
/// The words of the enum, in its order.
inline constexpr std::array<std::string_view, 3> sharing_words = {"none", "in-order", "fair"};
std::string_view to_string(Sharing sharing);

/// One level of a machine. It connects its members like a switch: each member has one port out and one port
/// in, of the link's bandwidth. The members of the first level are workers, the members of any other level
/// are the groups of the level before.
struct LinkLevel {
  std::string name = {};  ///< for people; may be empty
  /// Workers of a group: workers 0 to `workers` - 1 are the first group. The last level has a single group of
  /// all workers; its value is not read.
  int workers = 0;
  Link link = {};
  Sharing sharing = Sharing::none;
  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

/// The links between the workers of a machine: a tree of levels, innermost first. Two workers are connected
/// by the innermost level that has both in one group. A value; it does not say how many workers there are.
class Links {
 public:
  /// Transfers take no time.
  Links() = default;
  /// One link for all pairs of workers, which transfers do not share. Throws InputError if an amount is not
  /// one of `finite_amounts`.
  Links(const Link& link);  // NOLINT(google-explicit-constructor): costs are given as {.links = Link{...}}
  /// `levels`: innermost first. Throws InputError, naming the level by its index, if there is none, if an
  /// amount is not one of `finite_amounts`, and unless each group has at least 2 workers and consists of two
  /// or more groups of the level before.
  explicit Links(std::vector<LinkLevel> levels);

  /// Returns the levels; empty where transfers take no time.
  [[nodiscard]] const std::vector<LinkLevel>& levels() const { return levels_; }

  /// Returns the index in `levels` of the level between two different workers. There must be a level.
  [[nodiscard]] std::size_t level(int from, int to) const {
    std::size_t level = 0;
    while (level + 1 < levels_.size() && from / levels_[level].workers != to / levels_[level].workers)
      ++level;
    return level;
  }
  /// Returns the link between two different workers.
  [[nodiscard]] Link between(int from, int to) const {
    return levels_.empty() ? Link{} : levels_[level(from, to)].link;
  }
  /// Returns a link of which no pair of workers has a cheaper one: the smallest alpha and the smallest beta.
  [[nodiscard]] Link cheapest() const;
  /// True if all pairs of workers have one link, without sharing; it is then `between(0, 1)`.
  [[nodiscard]] bool uniform() const;
  /// True if some transfer takes time.
  [[nodiscard]] bool takes_time() const;
  /// True if some transfer's time depends on its bytes.
  [[nodiscard]] bool has_bandwidths() const;
  /// True if transfers may delay each other on a port.
  [[nodiscard]] bool shared() const;

  /// Returns the member of `level` to which a worker belongs. Its ports have the same number.
  [[nodiscard]] int member(std::size_t level, int worker) const {
    return level == 0 ? worker : worker / levels_[level - 1].workers;
  }

  friend bool operator==(const Links&, const Links&) = default;

 private:
  std::vector<LinkLevel> levels_;
};

}  // namespace starpipe::plan
