// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starpipe::plan {

/// The time of a transfer of `bytes`.
struct LinkTime {
  std::uint64_t bytes = 0;
  double time = 0;
  friend bool operator==(const LinkTime&, const LinkTime&) = default;
};

/// The cost of a transfer that has its link for itself: alpha + beta * bytes, or by a table. A transfer of 0
/// bytes takes alpha. Between the sizes of the table, times are interpolated linearly. Beyond its last size
/// each byte takes beta.
struct Link {
  double alpha = 0;                  ///< time of each transfer, its latency
  double beta = 0;                   ///< time of each byte, the inverse of the bandwidth
  std::vector<LinkTime> times = {};  ///< the table, ascending in bytes; empty: a straight line

  [[nodiscard]] double time(std::uint64_t bytes) const {
    return times.empty() ? alpha + beta * static_cast<double>(bytes) : time_by_table(bytes);
  }
  [[nodiscard]] bool takes_time() const { return alpha > 0 || has_bandwidth(); }
  /// True if the time depends on the bytes.
  [[nodiscard]] bool has_bandwidth() const {
    return beta > 0 || (!times.empty() && times.back().time > alpha);
  }
  /// Returns the same link where bytes take `factor` times as long.
  [[nodiscard]] Link slowed(double factor) const;
  friend bool operator==(const Link&, const Link&) = default;

 private:
  [[nodiscard]] double time_by_table(std::uint64_t bytes) const;
};

/// A port, in and out, whose bandwidth differs from the other ports of its level.
struct LinkPort {
  int member = 0;   ///< of the level
  double beta = 0;  ///< time of each byte
  friend bool operator==(const LinkPort&, const LinkPort&) = default;
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
  std::vector<LinkPort> ports = {};  ///< those that differ, ascending; needs `link.beta` > 0

  /// Returns how many times as long as by `link` bytes take at the port of a member.
  [[nodiscard]] double slowness(int member) const;
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
  /// amount is not one of `finite_amounts`, unless each group has at least 2 workers and consists of two or
  /// more groups of the level before, and for a table or ports that do not ascend as said above. The times of
  /// a table ascend, too, from alpha on.
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
  /// Returns the link between two different workers: the link of the level, at the bandwidth of the slower of
  /// the two ports.
  [[nodiscard]] const Link& between(int from, int to) const {
    if (levels_.empty()) return free_;
    const std::size_t l = level(from, to);
    return levels_[l].ports.empty() ? levels_[l].link : between_ports(l, member(l, from), member(l, to));
  }
  /// Returns a straight line that no pair of workers is cheaper than: the smallest alpha, and the smallest
  /// time of a further byte.
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
  [[nodiscard]] const Link& between_ports(std::size_t level, int from, int to) const;

  static inline const Link free_{};
  std::vector<LinkLevel> levels_;
  std::vector<std::vector<Link>>
      port_links_;  // [level]: the level's link at the bandwidth of each of its ports
};

}  // namespace starpipe::plan
