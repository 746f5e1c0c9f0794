// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/listing.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan {
namespace {

struct ListEntry {
  const ListedJob* listed;
  std::size_t row;
  std::size_t position;

  [[nodiscard]] const Job& job() const { return listed->job; }
};

/// Proves that a listing has both O and L of each stash that is copied, and gives their home and n.
class Copies {
 public:
  explicit Copies(const Listing& listing) : listing_(listing) {
    for (std::size_t r = 0; r < listing.copies.size(); ++r) {
      const std::vector<ListedCopy>& row = listing.copies[r];
      most_ = std::max(most_, row.size());
      for (std::size_t p = 0; p < row.size(); ++p) {
        if (row[p].position > listing.rows.at(r).size())
          fail(r, p, "position {} is behind the {} jobs of the worker", row[p].position,
               listing.rows[r].size());
        if (p > 0 && row[p].position < row[p - 1].position)
          fail(r, p, "position {} is before that of the copy before", row[p].position);
        if (!entries_.try_emplace(row[p].job, Entry{&row[p], r, p}).second)
          fail(r, p, "{} is listed twice", to_string(row[p].job));
      }
    }
    for (const auto& [job, entry] : entries_) {
      const Job other = {job.stage, job.microbatch, job.pass == Pass::O ? Pass::L : Pass::O};
      const auto found = entries_.find(other);
      if (found == entries_.end()) fail(entry.row, entry.cell, "{} is missing", to_string(other));
      if (found->second.listed->home != entry.listed->home)
        fail(entry.row, entry.cell, "its home is another than that of {}", to_string(other));
    }
  }

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// Returns the home of a stash; Home::worker if it is not copied.
  [[nodiscard]] Home home(int stage, int microbatch) const {
    const auto found = entries_.find({stage, microbatch, Pass::O});
    return found == entries_.end() ? Home::worker : found->second.listed->home;
  }
  /// Returns n of a copy, and of the job at `position` in a row.
  [[nodiscard]] std::int64_t n(const Job& job) const {
    const Entry& entry = entries_.at(job);
    return static_cast<std::int64_t>(entry.listed->position * (most_ + 1) + entry.cell);
  }
  [[nodiscard]] std::int64_t n(std::size_t position) const {
    return static_cast<std::int64_t>(position * (most_ + 1) + most_);
  }
  [[nodiscard]] const ListedCopy& listed(const Job& job) const { return *entries_.at(job).listed; }
  /// True if any stash waits on another worker.
  [[nodiscard]] bool any_on_worker() const {
    return std::ranges::any_of(entries_,
                               [](const auto& of) { return of.second.listed->home.peer().has_value(); });
  }
  /// Refuses a copy without n.
  void require_n() const {
    for (const auto& [job, entry] : entries_) {
      if (!entry.listed->n)
        fail(entry.row, entry.cell, "{} needs \"n\", since stashes wait on other workers", to_string(job));
    }
  }
  /// Refuses a copy that is not one of the schedule's, or not on this worker.
  void require_all_in(const Schedule& schedule) const {
    for (const auto& [job, entry] : entries_) {
      const std::optional<JobId> id = schedule.find(job);
      if (!id) fail(entry.row, entry.cell, "{} is out of range, or its stash is made again", to_string(job));
      if (schedule.compute(*id) != static_cast<int>(entry.row))
        fail(entry.row, entry.cell, "{} is of worker {}, which runs {}", to_string(job),
             schedule.compute(*id), job.pass == Pass::O ? "its F" : "its backward pass");
    }
  }

 private:
  struct Entry {
    const ListedCopy* listed;
    std::size_t row;
    std::size_t cell;
  };
  template <class... Args>
  [[noreturn]] void fail(std::size_t row, std::size_t cell, fmt::format_string<Args...> format,
                         Args&&... args) const {
    throw InputError(fmt::format("{}: {}: {}", listing_.source_name, listing_.copy_text(row, cell),
                                 fmt::format(format, std::forward<Args>(args)...)));
  }

  const Listing& listing_;
  std::map<Job, Entry> entries_;
  std::size_t most_ = 0;  // copies of a worker
};

auto by_job(const Job& job) { return std::tuple(job.microbatch, job.stage, job.pass); }

/// Sorts a listing and proves that it is complete. The numbers in the file may be absurd, so they never
/// decide how much is allocated.
class Completeness {
 public:
  explicit Completeness(const Listing& listing) : listing_(listing) {
    for (std::size_t r = 0; r < listing.rows.size(); ++r) {
      for (std::size_t p = 0; p < listing.rows[r].size(); ++p) {
        entries_.push_back({&listing.rows[r][p], r, p});
      }
    }
    if (entries_.empty()) throw InputError(fmt::format("{}: no jobs", listing.source_name));
    stages_ = count(&Job::stage, listing.stages, "stages", stages_note_);
    microbatches_ = count(&Job::microbatch, listing.microbatches, "micro-batches", microbatches_note_);
    std::ranges::sort(entries_, {}, [](const ListEntry& e) {
      return std::tuple_cat(by_job(e.job()), std::tuple(e.row, e.position));
    });
    for (const ListEntry& e : entries_) {
      if (e.listed->weights < 0 || e.listed->weights >= static_cast<int>(listing.rows.size())) {
        fail(e, "{}: weights from worker {}, which is not among the {} workers", to_string(e.job()),
             e.listed->weights, listing.rows.size());
      }
    }
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].job() != entries_[i - 1].job()) continue;
      fail(entries_[i], "{} is listed twice, first at {}", to_string(entries_[i].job()),
           position_text(entries_[i - 1]));
    }
    // Stops at the first missing job, so after at most as many rounds as there are entries.
    for (int b = 0; b < microbatches_; ++b) {
      for (int s = 0; s < stages_; ++s) require_passes(s, b);
    }
  }

  [[nodiscard]] const std::vector<ListEntry>& entries() const { return entries_; }
  [[nodiscard]] int stages() const { return stages_; }
  [[nodiscard]] int microbatches() const { return microbatches_; }

  [[nodiscard]] std::string position_text(const ListEntry& e) const {
    return listing_.position_text(e.row, e.listed->cell);
  }
  /// Returns the entry of a job; null when the listing has none.
  [[nodiscard]] const ListEntry* find(const Job& job) const {
    const auto found = std::ranges::lower_bound(entries_, by_job(job), {},
                                                [](const ListEntry& e) { return by_job(e.job()); });
    return found != entries_.end() && found->job() == job ? &*found : nullptr;
  }
  template <class... Args>
  [[noreturn]] void fail(const ListEntry& e, fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError(fmt::format("{}: {}: {}", listing_.source_name, position_text(e),
                                 fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  int count(int Job::*index, std::optional<int> given, const char* noun, std::string& note) const {
    const ListEntry& largest =
        *std::ranges::max_element(entries_, {}, [&](const ListEntry& e) { return e.job().*index; });
    const int top = largest.job().*index;
    if (!given) {
      note = fmt::format("{} {} by {}", top + 1, noun, position_text(largest));
      return top + 1;
    }
    note = fmt::format("{} {} stated", *given, noun);
    if (top >= *given) fail(largest, "{} is out of range: {}", to_string(largest.job()), note);
    return *given;
  }

  /// Proves that the listing has the passes of (s, b).
  void require_passes(int s, int b) const {
    const ListEntry* const f = find({s, b, Pass::F});
    const ListEntry* const i = find({s, b, Pass::B});
    const ListEntry* const w = find({s, b, Pass::W});
    const ListEntry* const bw = find({s, b, Pass::BW});
    if (bw != nullptr && (i != nullptr || w != nullptr)) {
      fail(*bw, "stage {}, micro-batch {} has both the fused backward pass {} and {}", s, b,
           to_string(bw->job()), to_string((i != nullptr ? i : w)->job()));
    }
    const ListEntry* const there = f != nullptr ? f : bw != nullptr ? bw : i != nullptr ? i : w;
    const auto missing = [&](Pass pass) {
      fail_missing(to_string(Job{s, b, pass}), waiting_for({s, b, pass}), there);
    };
    if (f == nullptr) missing(Pass::F);
    if (bw != nullptr || (i != nullptr && w != nullptr)) return;
    if (i != nullptr) missing(Pass::W);
    if (w != nullptr) missing(Pass::B);
    fail_missing(fmt::format("the backward pass of stage {}, micro-batch {}", s, b),
                 waiting_for({s, b, Pass::B}), there);
  }

  /// Returns a job of the listing that waits for `job`, which is missing; null when there is none.
  [[nodiscard]] const ListEntry* waiting_for(const Job& job) const {
    const auto [s, b, pass] = job;
    constexpr int max_stages = 1'000'000;  // beyond, the stage graph is not built
    std::vector<Job> candidates;
    if (pass == Pass::F) candidates = {{s, b, Pass::BW}, {s, b, Pass::B}};
    if (pass == Pass::B) candidates = {{s, b, Pass::W}};
    if (pass != Pass::W && stages_ <= max_stages) {
      const StageGraph graph = listing_.graph(stages_);
      for (const int other : pass == Pass::F ? graph.succ(s) : graph.pred(s)) {
        if (pass == Pass::F) candidates.push_back({other, b, Pass::F});
        if (pass == Pass::B) candidates.insert(candidates.end(), {{other, b, Pass::BW}, {other, b, Pass::B}});
      }
    }
    for (const Job& candidate : candidates) {
      if (const ListEntry* const entry = find(candidate)) return entry;
    }
    return nullptr;
  }

  /// Reports a missing job at the entry that waits for it. Without such an entry, reports it at `there`,
  /// another pass of the stage and micro-batch, or else at the last entry.
  [[noreturn]] void fail_missing(const std::string& what, const ListEntry* waiting,
                                 const ListEntry* there) const {
    const std::string note = fmt::format("{} is missing ({}, {})", what, stages_note_, microbatches_note_);
    if (waiting != nullptr) {
      fail(*waiting, "{} can never start: {}", to_string(waiting->job()), note);
    }
    fail(there != nullptr ? *there : entries_.back(), "{}", note);
  }

  const Listing& listing_;
  std::vector<ListEntry> entries_;
  int stages_ = 0;
  int microbatches_ = 0;
  std::string stages_note_;
  std::string microbatches_note_;
};

/// Proves that the schedule can finish in the order of the rows.
void require_progress(const Completeness& jobs, const Schedule& schedule) {
  const std::vector<Job> cycle = check(schedule).cycle;
  // Copies are in no row. The message of `check` names all jobs of the cycle.
  if (cycle.empty() || std::ranges::any_of(cycle, [](const Job& job) { return is_copy(job.pass); })) return;
  // Each job of the cycle waits for the one before it, either because of their order in a row or for its
  // data. The message starts with a job that waits for data.
  const auto before = [&](std::size_t i) { return jobs.find(cycle[i == 0 ? cycle.size() - 1 : i - 1]); };
  if (cycle.size() == 1) {
    const JobId last = schedule.last_of_pair(schedule.find(cycle.front()).value());
    jobs.fail(*jobs.find(cycle.front()), "{} and {} cannot run at once: the second waits for the first",
              to_string(cycle.front()), to_string(schedule.job(last)));
  }
  std::size_t first = 0;
  while (before(first)->row == jobs.find(cycle[first])->row &&
         before(first)->position < jobs.find(cycle[first])->position) {
    ++first;
  }
  constexpr std::size_t max = 5;
  std::string text = fmt::format("{} can never start", to_string(cycle[first]));
  std::size_t at = first;
  for (std::size_t i = 0; i < std::min(cycle.size(), max); ++i) {
    const ListEntry& other = *before(at);
    text += fmt::format("{} {}", i == 0 ? ": it waits for" : ", which waits for", to_string(other.job()));
    if (i + 1 < cycle.size()) text += fmt::format(" ({})", jobs.position_text(other));
    at = at == 0 ? cycle.size() - 1 : at - 1;
  }
  jobs.fail(*jobs.find(cycle[first]), "{}{}: a cycle of {} jobs", text, cycle.size() > max ? ", ..." : "",
            cycle.size());
}

/// Returns true if any jobs are a pair. Refuses a pair of other jobs than F and the backward pass behind it.
bool has_pairs(const Completeness& complete, const Listing& listing) {
  bool any = false;
  for (const ListEntry& entry : complete.entries()) {
    if (!entry.listed->with_next) continue;
    any = true;
    const std::vector<ListedJob>& row = listing.rows[entry.row];
    const bool is_last = entry.position + 1 == row.size();
    if (entry.job().pass != Pass::F || is_last || !gives_input_gradient(row[entry.position + 1].job.pass))
      complete.fail(entry, "{} is no F with a backward pass behind it, so they are no pair",
                    to_string(entry.job()));
    if (listing.discipline != Discipline::ordered)
      complete.fail(entry, "a pair needs an ordered schedule; this one is {}", to_string(listing.discipline));
  }
  return any;
}

/// Refuses jobs without n, and an n that is not larger than that of the job before in the row.
void require_n(const Completeness& complete, const Copies& copies) {
  std::vector<const ListEntry*> rows;
  for (const ListEntry& entry : complete.entries()) {
    if (!entry.listed->n)
      complete.fail(entry, "{} needs \"n\", since stashes wait on other workers", to_string(entry.job()));
    rows.push_back(&entry);
  }
  std::ranges::sort(rows, {}, [](const ListEntry* entry) { return std::tuple(entry->row, entry->position); });
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i]->row == rows[i - 1]->row && *rows[i]->listed->n <= *rows[i - 1]->listed->n)
      complete.fail(*rows[i], "n is not larger than that of the job before");
  }
  copies.require_n();
}

}  // namespace

Schedule schedule_from_listing(const Listing& listing) {
  const Completeness complete(listing);
  const Copies copies(listing);
  const int stages = complete.stages();

  ScheduleSpec spec;
  spec.name =
      listing.name.empty() ? std::filesystem::path(listing.source_name).stem().string() : listing.name;
  spec.microbatches = complete.microbatches();
  spec.slices = listing.slices;
  if (spec.microbatches % spec.slices != 0)
    throw InputError(fmt::format("{}: slices: {} micro-batches are no sequences of {} slices",
                                 listing.source_name, spec.microbatches, spec.slices));
  spec.workers = static_cast<int>(listing.rows.size());
  spec.discipline = listing.discipline;
  spec.memory_limits = listing.memory_limits;
  spec.late_recomputation = listing.late_recomputation;
  spec.graph = listing.graph(stages);

  const auto at = [&](const Job& job) -> const ListEntry& { return *complete.find(job); };
  const auto is_split = [](const ListEntry& e) { return e.job().pass == Pass::B; };
  if (std::ranges::any_of(complete.entries(), is_split))
    spec.split_backward = [&](int s, int b) { return complete.find({s, b, Pass::B}) != nullptr; };
  const auto is_remade = [](const ListEntry& e) { return e.job().pass == Pass::R; };
  if (std::ranges::any_of(complete.entries(), is_remade) || !copies.empty())
    spec.home = [&](int s, int b) { return complete.find({s, b, Pass::R}) ? Home::none : copies.home(s, b); };
  spec.placement = [&](const Job& job) {
    return Placement{.weights = at(job).listed->weights, .compute = static_cast<int>(at(job).row)};
  };
  const bool has_peers = copies.any_on_worker();
  if (has_peers) require_n(complete, copies);
  spec.pairs = has_pairs(complete, listing);
  spec.priority = [&](const Job& job) {
    if (is_copy(job.pass)) return has_peers ? *copies.listed(job).n : copies.n(job);
    const ListEntry& entry = at(job);
    const bool is_second = entry.position > 0 && listing.rows[entry.row][entry.position - 1].with_next;
    const std::size_t position = entry.position - (is_second ? 1 : 0);
    return has_peers ? *listing.rows[entry.row][position].n : copies.n(position);
  };
  Schedule schedule(spec);
  copies.require_all_in(schedule);
  require_progress(complete, schedule);
  return schedule;
}

}  // namespace starpipe::plan
