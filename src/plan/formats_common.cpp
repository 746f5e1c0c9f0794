// SPDX-License-Identifier: Apache-2.0
#include "formats_common.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>

#include "starpipe/plan/check.hpp"
#include "starpipe/plan/error.hpp"
#include "stashes.hpp"

namespace starpipe::plan::detail {

std::vector<std::vector<JobId>> run_order(const Schedule& schedule, const Timeline& timeline) {
  const auto& spans = timeline.spans;
  // Jobs that take no time may share an instant; there the data dependencies tell who was first.
  std::vector<std::uint32_t> place;
  const bool instants = std::any_of(schedule.order().begin(), schedule.order().end(),
                                    [&](JobId id) { return spans[id].start == spans[id].end; });
  if (instants) {
    place.resize(schedule.slots());
    std::uint32_t next = 0;
    for (const JobId id : topological_order(schedule)) place[id] = next++;
  }
  std::vector<std::vector<JobId>> rows(static_cast<std::size_t>(schedule.workers()));
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    const auto order = schedule.order(worker);
    auto& row = rows[static_cast<std::size_t>(worker)];
    row.assign(order.begin(), order.end());
    const auto key = [&](JobId id) {
      return std::tuple(spans[id].start, spans[id].end, instants ? place[id] : schedule.rank(id));
    };
    std::sort(row.begin(), row.end(), [&](JobId a, JobId b) { return key(a) < key(b); });
  }
  return rows;
}

double first_start(const Schedule& schedule, const Timeline& timeline) {
  double first = std::numeric_limits<double>::infinity();
  for (const JobId id : schedule.order()) first = std::min(first, timeline.spans[id].start);
  return std::isfinite(first) ? first : 0;
}

std::string number_text(double value) {
  const double size = std::abs(value);
  if (std::floor(value) == value && size < 1e9) return fmt::format("{:.0f}", value);
  if (size >= 1e5 && size < 1e9) return fmt::format("{:.0f}", value);
  return fmt::format("{:.5g}", value);
}

namespace {

std::string stem(const std::string& source_name) {
  const auto slash = source_name.find_last_of('/');
  std::string name = slash == std::string::npos ? source_name : source_name.substr(slash + 1);
  const auto dot = name.find_last_of('.');
  if (dot != std::string::npos && dot > 0) name.resize(dot);
  return name;
}

struct Entry {
  const ListedJob* listed;
  std::size_t row;
  std::size_t position;
};

/// Sorts and proves a listing complete. Never allocates by the numbers in the file, which may be absurd.
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
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      const Job& x = a.listed->job;
      const Job& y = b.listed->job;
      return std::tie(x.microbatch, x.stage, x.pass, a.row, a.position) <
             std::tie(y.microbatch, y.stage, y.pass, b.row, b.position);
    });
    for (const Entry& e : entries_) {
      if (e.listed->weights < 0 || e.listed->weights >= static_cast<int>(listing.rows.size())) {
        fail(e, fmt::format("{}: weights from worker {}, which is not among the {} workers",
                            to_string(e.listed->job), e.listed->weights, listing.rows.size()));
      }
    }
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].listed->job == entries_[i - 1].listed->job) {
        fail(entries_[i], fmt::format("{} is listed twice, first at {}", to_string(entries_[i].listed->job),
                                      where(entries_[i - 1])));
      }
    }
    std::size_t next = 0;
    // Stops at the first job that is missing, hence after at most as many turns as there are entries.
    for (int b = 0; b < microbatches_; ++b) {
      for (int s = 0; s < stages_; ++s) next = prove(next, s, b);
    }
  }

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] int stages() const { return stages_; }
  [[nodiscard]] int microbatches() const { return microbatches_; }

 private:
  [[nodiscard]] std::string where(const Entry& e) const { return listing_.where(e.row, e.listed->cell); }

  [[noreturn]] void fail(const Entry& e, const std::string& message) const {
    throw InputError(fmt::format("{}: {}: {}", listing_.source_name, where(e), message));
  }

  int count(int Job::*index, std::optional<int> given, const char* noun, std::string& note) const {
    const auto largest = std::max_element(entries_.begin(), entries_.end(), [&](auto& a, auto& b) {
      return a.listed->job.*index < b.listed->job.*index;
    });
    const int top = largest->listed->job.*index;
    if (!given) {
      note = fmt::format("{} {} by {}", top + 1, noun, where(*largest));
      return top + 1;
    }
    note = fmt::format("{} {} stated", *given, noun);
    if (top >= *given) {
      fail(*largest, fmt::format("{} does not exist with {}", to_string(largest->listed->job), note));
    }
    return *given;
  }

  /// entries_[next...] must start with the passes of (s, b); returns where they end.
  [[nodiscard]] std::size_t prove(std::size_t next, int s, int b) const {
    bool has[4] = {};
    const Entry* backward = nullptr;
    for (; next < entries_.size(); ++next) {
      const Job& job = entries_[next].listed->job;
      if (job.stage != s || job.microbatch != b) break;
      has[static_cast<std::size_t>(job.pass)] = true;
      if (job.pass != Pass::F) backward = &entries_[next];
    }
    const auto present = [&](Pass pass) { return has[static_cast<std::size_t>(pass)]; };
    const auto missing = [&](const std::string& what) {
      throw InputError(fmt::format("{}: {} is missing ({}, {})", listing_.source_name, what, stages_note_,
                                   microbatches_note_));
    };
    if (!present(Pass::F)) missing(to_string(Job{s, b, Pass::F}));
    if (present(Pass::BW) && (present(Pass::B) || present(Pass::W))) {
      fail(*backward, fmt::format("stage {}, micro-batch {} has both the fused backward pass {} and {}", s, b,
                                  to_string(Job{s, b, Pass::BW}),
                                  to_string(Job{s, b, present(Pass::B) ? Pass::B : Pass::W})));
    }
    if (backward == nullptr) {
      missing(fmt::format("the backward pass of stage {}, micro-batch {}", s, b));
    }
    if (!present(Pass::BW)) {
      for (const Pass pass : {Pass::B, Pass::W}) {
        if (!present(pass)) missing(to_string(Job{s, b, pass}));
      }
    }
    return next;
  }

  const Listing& listing_;
  std::vector<Entry> entries_;
  int stages_ = 0;
  int microbatches_ = 0;
  std::string stages_note_;
  std::string microbatches_note_;
};

}  // namespace

Schedule schedule_from_listing(const Listing& listing) {
  const Completeness complete(listing);
  const int stages = complete.stages();

  ScheduleSpec spec;
  spec.name = listing.name.empty() ? stem(listing.source_name) : listing.name;
  spec.microbatches = complete.microbatches();
  spec.workers = static_cast<int>(listing.rows.size());
  spec.discipline = Discipline::ordered;
  spec.memory_limits = listing.memory_limits;
  spec.recompute = listing.recompute;
  try {
    spec.graph = listing.edges ? StageGraph(stages, *listing.edges) : StageGraph::chain(stages);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: stage_graph: {}", listing.source_name, error.what()));
  }

  struct Cell {
    Placement placement;
    std::int64_t position = 0;
    bool present = false;
  };
  std::vector<Cell> table(static_cast<std::size_t>(stages) * static_cast<std::size_t>(spec.microbatches) * 4);
  const auto at = [&](const Job& job) -> Cell& {
    const auto pair = static_cast<std::size_t>(job.microbatch) * static_cast<std::size_t>(stages) +
                      static_cast<std::size_t>(job.stage);
    return table[pair * 4 + static_cast<std::size_t>(job.pass)];
  };
  bool any_split = false;
  for (const Entry& e : complete.entries()) {
    at(e.listed->job) = {
        {e.listed->weights, static_cast<int>(e.row)}, static_cast<std::int64_t>(e.position), true};
    any_split = any_split || e.listed->job.pass == Pass::B;
  }
  if (any_split) {
    spec.split_backward = [&](int s, int b) { return at({s, b, Pass::B}).present; };
  }
  spec.placement = [&](const Job& job) { return at(job).placement; };
  spec.priority = [&](const Job& job) { return at(job).position; };
  try {
    return Schedule(spec);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", listing.source_name, error.what()));
  }
}

}  // namespace starpipe::plan::detail
