// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/homes_to_fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

namespace {

// Decides what happens to the stashes of a worker, event by event in the order of its places.
class Fitting {
 public:
  Fitting(std::span<const StashWait> stashes, double limit, double remade)
      : stashes_(stashes), limit_(limit), remade_(remade), fates_(stashes.size()) {}

  /// Returns nullopt if even the stashes that jobs are using take more than the limit.
  std::optional<std::vector<StashFate>> run() {
    std::vector<std::pair<std::pair<std::size_t, Event>, std::size_t>> events;
    for (std::size_t i = 0; i < stashes_.size(); ++i) {
      // Where both are in one place, R makes the stash already.
      if (stashes_[i].forward < stashes_[i].backward)
        events.push_back({{stashes_[i].forward, Event::forward}, i});
      events.push_back({{stashes_[i].backward, Event::backward}, i});
      events.push_back({{stashes_[i].last, Event::end}, i});
    }
    std::ranges::sort(events);
    for (const auto& [at, i] : events) {
      const StashWait& stash = stashes_[i];
      switch (at.second) {
        case Event::forward:
          live_ += stash.size;
          waiting_.emplace(stash.backward, i);
          break;
        case Event::backward:
          if (waiting_.erase({stash.backward, i}) == 0) live_ += stash.size;
          break;
        case Event::end:
          live_ -= stash.size;
      }
      while (live_ > limit_) {
        if (!drop(at.first, i)) return std::nullopt;
      }
    }
    return std::move(fates_);
  }

 private:
  enum class Event : std::uint8_t { backward, forward, end };  // at most one of the first two in a place

  // Drops the stash that is needed last. `here`: the one that the job at `place` makes, or brings back.
  bool drop(std::size_t place, std::size_t here) {
    const auto remade_of = [this](int dropped) { return std::floor(remade_ * dropped + 1e-9); };
    bool remakes = remade_of(dropped_ + 1) > remade_of(dropped_);
    auto victim = waiting_.rbegin();
    // R makes the stash that is made here as if its F had kept none. A copy must wait for its F to end.
    if (!remakes && victim != waiting_.rend() && victim->second == here) ++victim;
    if (!remakes && remade_ > 0 && victim == waiting_.rend()) {
      remakes = true;
      victim = waiting_.rbegin();
    }
    if (victim == waiting_.rend()) return false;
    const std::size_t i = victim->second;
    waiting_.erase(std::next(victim).base());
    live_ -= stashes_[i].size;
    fates_[i].kind = remakes ? StashFate::Kind::remade : StashFate::Kind::copied;
    fates_[i].out_before = place;
    fates_[i].back_from = stashes_[i].backward;
    ++dropped_;
    return true;
  }

  std::span<const StashWait> stashes_;
  double limit_;
  double remade_;
  std::vector<StashFate> fates_;
  std::set<std::pair<std::size_t, std::size_t>> waiting_;  // place of B, and the stash
  double live_ = 0;
  int dropped_ = 0;
};

// Gives copies time where memory allows: lets each O end later and each L begin earlier, both by one place in
// turn. L keep the order of their B.
void give_time(std::span<const StashWait> stashes, double limit, std::vector<StashFate>& fates) {
  constexpr int max_places = 8;  // a longer copy would not fit its channel anyway
  std::size_t places = 0;
  for (const StashWait& stash : stashes) places = std::max(places, stash.last + 1);
  std::vector<double> live(places, 0);
  std::vector<std::size_t> copied;
  const auto hold = [&](std::size_t from, std::size_t to, double size) {
    for (std::size_t place = from; place < to; ++place) live[place] += size;
  };
  for (std::size_t i = 0; i < stashes.size(); ++i) {
    const StashWait& stash = stashes[i];
    const bool is_copied = fates[i].kind == StashFate::Kind::copied;
    if (is_copied) {
      copied.push_back(i);
      hold(stash.forward, fates[i].out_before, stash.size);
    }
    hold(fates[i].kind == StashFate::Kind::kept ? stash.forward : stash.backward, stash.last + 1, stash.size);
  }
  std::ranges::sort(copied, {}, [&](std::size_t i) { return stashes[i].backward; });
  for (int round = 0; round < max_places; ++round) {
    std::size_t earliest = 0;  // the L before
    for (const std::size_t i : copied) {
      auto& [kind, out, back] = fates[i];
      const auto fits = [&](std::size_t place) { return live[place] + stashes[i].size <= limit; };
      if (out < back && fits(out)) live[out++] += stashes[i].size;
      if (back > std::max(out, earliest) && fits(back - 1)) live[--back] += stashes[i].size;
      earliest = back;
    }
  }
}

}  // namespace

std::optional<std::vector<StashFate>> fates_to_fit(std::span<const StashWait> stashes, double limit,
                                                   double remade, int spare) {
  double largest = 0;
  for (const StashWait& stash : stashes) largest = std::max(largest, stash.size);
  std::optional<std::vector<StashFate>> fates = Fitting(stashes, limit, remade).run();
  const auto is_kept = [](const StashFate& fate) { return fate.kind == StashFate::Kind::kept; };
  if (fates && std::ranges::all_of(*fates, is_kept)) return fates;
  if (spare > 0) fates = Fitting(stashes, limit - spare * largest, remade).run();
  if (fates) give_time(stashes, limit, *fates);
  return fates;
}

std::optional<std::vector<bool>> dropped_to_fit(std::span<const StashWait> stashes, double limit) {
  const std::optional<std::vector<StashFate>> fates = Fitting(stashes, limit, 1).run();
  if (!fates) return std::nullopt;
  std::vector<bool> dropped;
  for (const StashFate& fate : *fates) dropped.push_back(fate.kind == StashFate::Kind::remade);
  return dropped;
}

Schedule with_homes_to_fit(const Schedule& schedule, std::span<const int> limits, const FitWays& ways) {
  return with_homes_to_fit(schedule, std::vector<double>(limits.begin(), limits.end()), ways);
}

Schedule with_homes_to_fit(const Schedule& schedule, std::span<const double> limits, const FitWays& ways) {
  if (schedule.forward_only()) return schedule;
  if (schedule.copies())
    throw InputError(fmt::format("{}: home: auto does not apply where stashes are copied", schedule.name()));
  const auto pair_of = [&](int stage, int microbatch) {
    return index(microbatch) * index(schedule.stages()) + index(stage);
  };
  const std::size_t all = index(schedule.stages()) * index(schedule.microbatches());
  std::vector<Home> homes(all, Home::worker);
  std::vector<StashFate> fates(all);
  std::vector<std::vector<std::pair<int, int>>> pairs(index(schedule.workers()));  // stage and micro-batch
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) {
      const JobId backward = schedule.backward(s, b);
      const int worker = schedule.compute(backward);
      for (const JobId id :
           {schedule.forward(s, b), schedule.stash_maker(s, b), schedule.weight_gradient(s, b)}) {
        if (schedule.compute(id) == worker) continue;
        throw InputError(
            fmt::format("{}: home: auto needs the passes of a stash on one worker, but {} runs on worker {} "
                        "and {} on {}",
                        schedule.name(), to_string(schedule.job(backward)), worker,
                        to_string(schedule.job(id)), schedule.compute(id)));
      }
      pairs[index(worker)].emplace_back(s, b);
    }
  }
  for (std::size_t w = 0; w < pairs.size(); ++w) {
    std::vector<StashWait> stashes;
    for (const auto& [s, b] : pairs[w]) {
      const JobId backward = schedule.backward(s, b);
      const std::size_t place = schedule.position(backward);
      const std::size_t last =
          std::max<std::size_t>(place, schedule.position(schedule.weight_gradient(s, b)));
      const std::size_t made = schedule.position(schedule.stash_maker(s, b));
      // A stash that R makes already cannot be dropped.
      stashes.push_back({made, schedule.recomputes(s, b) ? made : place, last,
                         ways.sizes[ways.sizes.size() == 1 ? 0 : index(s)]});
    }
    const auto fitted = fates_to_fit(stashes, limits[w], ways.remade, ways.spare);
    if (!fitted) {
      throw InputError(
          fmt::format("{}: worker {} uses more stashes at once than its memory limit of {}, whatever is "
                      "computed again{}",
                      schedule.name(), w, limits[w], ways.remade < 1 ? " or copied" : ""));
    }
    for (std::size_t i = 0; i < fitted->size(); ++i) {
      const auto& [s, b] = pairs[w][i];
      fates[pair_of(s, b)] = (*fitted)[i];
      if ((*fitted)[i].kind == StashFate::Kind::copied) homes[pair_of(s, b)] = ways.copies;
      if ((*fitted)[i].kind == StashFate::Kind::remade || schedule.recomputes(s, b))
        homes[pair_of(s, b)] = Home::none;
    }
  }
  const Schedule with_jobs = schedule.with_homes([&](int s, int b) { return homes[pair_of(s, b)]; });
  if (!with_jobs.copies()) return with_jobs;
  // Between the turns of two jobs there is room for O, then for L.
  enum Part : std::uint8_t { out, back, job_itself, parts };
  ScheduleSpec spec = with_jobs.spec();
  spec.priority = [&](const Job& job) {
    if (!is_copy(job.pass)) return std::int64_t{parts} * with_jobs.turn(*with_jobs.find(job)) + job_itself;
    const StashFate& fate = fates[pair_of(job.stage, job.microbatch)];
    const auto row = schedule.order(schedule.compute(schedule.backward(job.stage, job.microbatch)));
    // The place counts jobs without R, which runs directly before its B.
    const JobId at = row[job.pass == Pass::O ? fate.out_before : fate.back_from];
    const Job before = schedule.job(at);
    const bool after_r = gives_input_gradient(before.pass) &&
                         !schedule.recomputes(before.stage, before.microbatch) &&
                         with_jobs.recomputes(before.stage, before.microbatch);
    const JobId first =
        after_r ? with_jobs.recomputation(before.stage, before.microbatch) : *with_jobs.find(before);
    return std::int64_t{parts} * with_jobs.turn(first) + (job.pass == Pass::O ? out : back);
  };
  spec.discipline = Discipline::ordered;
  return Schedule(spec);
}

}  // namespace starpipe::plan
