// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/links.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::plan {
namespace {

void require_amounts(const Link& link) {
  if (finite_amounts.contains(link.alpha) && finite_amounts.contains(link.beta)) return;
  throw InputError(fmt::format("communication costs must be {} (alpha={}, beta={})", finite_amounts.text(),
                               link.alpha, link.beta));
}

}  // namespace

std::string_view to_string(Sharing sharing) { return sharing_words[index(sharing)]; }

Links::Links(const Link& link) {
  require_amounts(link);
  if (link.takes_time()) levels_.push_back({.link = link});
}

Links::Links(std::vector<LinkLevel> levels) : levels_(std::move(levels)) {
  if (levels_.empty()) throw InputError("links: the list of levels is empty");
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    const auto refuse = [l](std::string_view problem) {
      throw InputError(fmt::format("links: level {}: {}", l, problem));
    };
    require_amounts(levels_[l].link);
    if (l + 1 == levels_.size()) {
      levels_[l].workers = 0;
      break;
    }
    const int workers = levels_[l].workers;
    if (workers < 2) refuse(fmt::format("a group of {} workers has no link", workers));
    if (l == 0) continue;
    const int inner = levels_[l - 1].workers;
    if (workers % inner != 0 || workers == inner) {
      refuse(fmt::format("{} workers are not two or more groups of {}", workers, inner));
    }
  }
}

Link Links::cheapest() const {
  if (levels_.empty()) return {};
  Link min = levels_.front().link;
  for (const LinkLevel& level : levels_) {
    min.alpha = std::min(min.alpha, level.link.alpha);
    min.beta = std::min(min.beta, level.link.beta);
  }
  return min;
}

bool Links::uniform() const {
  return levels_.empty() || (levels_.size() == 1 && levels_.front().sharing == Sharing::none);
}

bool Links::takes_time() const {
  return std::ranges::any_of(levels_, [](const LinkLevel& level) { return level.link.takes_time(); });
}

bool Links::has_bandwidths() const {
  return std::ranges::any_of(levels_, [](const LinkLevel& level) { return level.link.beta > 0; });
}

bool Links::shared() const {
  return std::ranges::any_of(
      levels_, [](const LinkLevel& level) { return level.sharing != Sharing::none && level.link.beta > 0; });
}

}  // namespace starpipe::plan
