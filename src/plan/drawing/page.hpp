// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A predicted, measured or simulated step of a run. Refers to the step, which must outlive the call.
struct PageTimeline {
  std::string title;  ///< "predicted", "measured", "simulated", the name of a policy
  const RecordedStep* step = nullptr;
};

/// A report or a schedule on the page. Refers to the report, which must outlive the call.
struct PageRun {
  std::string title;  ///< the name of the report's file, or of the schedule
  std::string unit;   ///< of all times: "s", or empty without a name
  Costs costs;        ///< `sizes` and `shared` are read: for the bytes that workers hold and exchange
  std::vector<PageTimeline> timelines;  ///< of one number of workers and stages; at least one
  /// Shown with the timelines: a report of `train` or `compare`, or the figures of a `search`. May be null.
  /// See `report_for_page`.
  const nlohmann::ordered_json* report = nullptr;
};

/// Returns the prediction and the median step of a run. `run` and `report` must outlive the result.
PageRun compared_page_run(const std::string& title, const ComparedRun& run,
                          const nlohmann::ordered_json& report);

/// Returns a smaller report for the page: without the records of steps, which the timelines have, and without
/// the offsets of the data.
nlohmann::ordered_json report_for_page(nlohmann::ordered_json report);

/// True if this program was built with the page.
bool has_page();

/// Throws InputError when the program was built without the page. The message names `option` and says how to
/// get the page.
void require_page(std::string_view option);

/// Returns the page as HTML text: one file that needs no network and no other file. Each run has its jobs,
/// idle times by cause, critical path, memory over time and traffic. No text of a report can become markup:
/// the data are JSON without "<", ">" and "&", and ASCII. Throws InputError when the program was built
/// without the page. O(jobs log jobs).
std::string report_page(std::span<const PageRun> runs);

/// Returns the page of viewer/ without data, as HTML: the build generates the source. Empty if the program
/// was built without the page.
std::string_view page_template();

/// Stands in the template where the data go, once.
inline constexpr std::string_view data_mark = "STARPIPE_PAGE_DATA";

// How the page's data write numbers.

/// Whole numbers as short text: the variable-length quantities of source maps. Each number is a row of digits
/// to base 32, the lowest first; a digit of which more follow has 32 added, and is a character of base64. The
/// lowest bit of the number is its sign. `column` in viewer/src/columns.ts reads it.
class Column {
 public:
  void add(std::int64_t value);
  /// Adds the difference to the number of the call before, at first to 0: short where numbers lie close.
  void add_difference(std::int64_t value);
  /// `add_difference` counts from 0 again.
  void restart() { last_ = 0; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::int64_t last_ = 0;
};

/// Times as whole numbers. A tick is a power of ten: the largest of which all times of the steps are
/// multiples, at least 1e-9 units (nanoseconds); larger where numbers would pass 2^53, which JavaScript has
/// exactly.
class Ticks {
 public:
  explicit Ticks(std::span<const RecordedStep* const> steps);

  [[nodiscard]] std::int64_t of(double time) const;
  /// Returns the length of a tick in units of time.
  [[nodiscard]] double length() const;

 private:
  int exponent_ = -9;  // a tick is 10^exponent_ units
};

/// Returns a step as the page reads it (viewer/src/data.ts): figures; and as columns the jobs by worker, and
/// copies, idle times by worker, the critical path, memory over time by worker, and the traffic between
/// workers.
nlohmann::ordered_json timeline_data(const PageTimeline& timeline, const Costs& costs, const Ticks& ticks);

}  // namespace starpipe::plan
