// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "cli/study/study.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A column of the table, and where a report has its value.
using Column = std::pair<std::string_view, std::string_view>;
constexpr std::array peaks = {"peak_stashes", "peak_stash_bytes"};

/// Returns the value at a path such as "/makespan/predicted"; null if it is missing.
Json at(const Json& report, const std::string& path) {
  const Json::json_pointer pointer(path);
  return report.contains(pointer) ? report.at(pointer) : Json();
}
Json smallest(const Json& list) {
  return list.is_array() && !list.empty() ? *std::ranges::min_element(list) : Json();
}
Json largest(const Json& list) {
  return list.is_array() && !list.empty() ? *std::ranges::max_element(list) : Json();
}

/// Sets the cell of a column, unless the value is null.
void put(Json& row, const std::string& column, Json value) {
  if (!value.is_null()) row[column] = std::move(value);
}
void put_all(Json& row, const Json& report, std::initializer_list<Column> columns) {
  for (const auto& [column, path] : columns) put(row, std::string(column), at(report, std::string(path)));
}
/// Sets the columns that have the names of members of the report, behind `prefix`.
void put_members(Json& row, const std::string& prefix, const Json& report,
                 std::initializer_list<const char*> names) {
  for (const std::string name : names) put(row, prefix + name, at(report, "/" + name));
}

/// Returns the sum of all numbers inside of a value; null if it is missing.
Json total(const Json& value) {
  if (value.is_null() || value.is_number_unsigned()) return value;
  std::uint64_t sum = 0;
  for (const Json& part : value) {
    if (part.is_structured() || part.is_number_unsigned()) sum += total(part).get<std::uint64_t>();
  }
  return sum;
}

/// Returns the bytes that all workers received, predicted or measured, of a report of `train`.
Json bytes_moved(const Json& report, const std::string& which) {
  std::uint64_t sum = 0;
  const Json kinds = at(report, "/received");
  for (const auto& [kind, transfers] : kinds.items())
    sum += total(transfers.at("bytes").at(which)).get<std::uint64_t>();
  return kinds.is_null() ? Json() : Json(sum);
}

/// Versions, machine and numbers of workers: what all rows of a report have. Later columns of a name replace
/// earlier ones.
void put_head(Json& row, const Json& report) {
  put_all(row, report,
          {{"starpipe", "/versions/starpipe"},
           {"commit", "/versions/commit"},
           {"starpu", "/versions/starpu"},
           {"mpi", "/versions/mpi"},
           {"machine", "/machine/name"},
           {"processor", "/machine/processor"},
           {"cores", "/machine/cores"},
           {"ranks", "/machine/ranks"},
           {"schedule", "/config/schedule/name"},
           {"workers", "/config/schedule/workers"},
           {"workers", "/workers"},
           {"stages", "/stages"},
           {"microbatches", "/config/training/microbatches"},
           {"microbatches", "/microbatches"},
           {"emulated", "/emulated"}});
  put(row, "reordered", !at(report, "/reordered").is_null());
}

/// The parts of the difference between prediction and measurement in the median step, in seconds.
void put_difference(Json& row, const Json& report) {
  const Json first = at(report, "/explain/steps/first");
  const Json median = at(report, "/explain/steps/median");
  if (!first.is_number() || !median.is_number()) return;
  const auto step = median.get<std::int64_t>() - first.get<std::int64_t>();
  for (const char* part : {"durations", "transfers", "order", "runtime"}) {
    const Json value = at(report, fmt::format("/explain/per_step/{}/{}", part, step));
    if (value.is_number()) row[fmt::format("difference_{}", part)] = value.get<double>() * 1e-9;
  }
}

void put_train(Json& row, const Json& report) {
  put_head(row, report);
  put_all(row, report,
          {{"policy", "/policy/ran"}, {"discipline", "/discipline"}, {"parameters", "/parameters"}});
  for (const std::string which : {"predicted", "measured"}) {
    for (const std::string name : {"makespan", "gradients_summed", "bubble_fraction", "device_span"})
      put(row, which + "_" + name, at(report, fmt::format("/{}/{}", name, which)));
    for (const char* name : peaks)
      put(row, fmt::format("{}_{}", which, name), largest(at(report, fmt::format("/{}/{}", name, which))));
    put(row, which + "_bytes_moved", bytes_moved(report, which));
    put(row, which + "_bytes_between_ranks_in_all", at(report, "/bytes_between_ranks/" + which));
  }
  put_difference(row, report);
  put_members(row, "", report, {"tokens_per_second", "samples_per_second"});
  const Json losses = at(report, "/losses");
  if (losses.is_array() && !losses.empty()) row["last_loss"] = losses.back();
  const Json evaluations = at(report, "/evaluations");
  if (evaluations.is_array() && !evaluations.empty())
    put(row, "last_validation_loss", at(evaluations.back(), "/loss"));
}

void put_simulate(Json& row, const Json& report) {
  put_members(row, "", report, {"schedule", "workers", "stages", "microbatches", "discipline", "unit"});
  put(row, "reordered", !at(report, "/reordered").is_null());
  put_members(row, "predicted_", report, {"makespan", "gradients_summed", "bubble_fraction", "device_span"});
  for (const char* name : peaks)
    put(row, fmt::format("predicted_{}", name), largest(at(report, fmt::format("/{}", name))));
  put(row, "predicted_bytes_moved", total(at(report, "/received_bytes")));
  Json max;
  for (const Json& worker : at(report, "/memory")) max = std::max(max, total(worker));
  put(row, "predicted_memory", std::move(max));
}

void put_sim(Json& row, const Json& report) {
  const Json workers = at(report, "/workers");
  put(row, "schedule", at(report, "/schedule"));
  put(row, "workers", workers.size());
  put_members(row, "", report, {"stages", "microbatches", "nodes", "ranks"});
  for (const std::string which : {"predicted", "simulated"}) {
    for (const char* name : {"makespan", "gradients_summed", "bubble_fraction"})
      put(row, fmt::format("{}_{}", which, name), at(report, fmt::format("/{}/{}", name, which)));
    std::map<std::string_view, Json> max;
    Json moved;
    for (const Json& worker : workers) {
      for (const auto& [column, name] :
           {Column(peaks[0], peaks[0]), Column(peaks[1], peaks[1]), Column("memory", "gpu_memory")})
        max[column] = std::max(max[column], at(worker, fmt::format("/{}/{}", name, which)));
      const Json bytes = bytes_moved(worker, which);
      if (!bytes.is_null())
        moved = moved.is_null() ? bytes : Json(moved.get<std::uint64_t>() + bytes.get<std::uint64_t>());
    }
    for (const auto& [column, value] : max) put(row, fmt::format("{}_{}", which, column), value);
    put(row, which + "_bytes_moved", moved);
    put(row, which + "_bytes_between_ranks_in_all", at(report, "/bytes_between_ranks/" + which));
  }
}

/// One policy of one schedule of a report of `compare`.
void put_compared(Json& row, const Json& report, const Json& policy) {
  put_head(row, report);
  put_all(row, policy,
          {{"requested_policy", "/policy"},
           {"policy", "/ran"},
           {"predicted_makespan", "/predicted_makespan"},
           {"measured_makespan", "/makespan"}});
  put(row, "min_makespan", smallest(at(policy, "/makespans")));
  put(row, "max_makespan", largest(at(policy, "/makespans")));
  const Json predicted = at(report, "/predicted");
  for (const char* name : {"bubble_fraction", "bytes_moved"}) {
    put_members(row, "predicted_", predicted, {name});
    put_members(row, "measured_", policy, {name});
  }
  for (const char* name : peaks) {
    put(row, fmt::format("predicted_{}", name), largest(at(predicted, fmt::format("/{}", name))));
    put(row, fmt::format("measured_{}", name), largest(at(policy, fmt::format("/{}", name))));
  }
}

/// Returns the first cells of a run's row: its name, settings and state.
Json row_of(const StudyRun& run, const RunOutcome& outcome, bool repeated) {
  constexpr std::array words = {"open", "done", "failed"};
  Json row = {{"run", run.name}};
  // Settings have no names of other columns: all keys have a section, so a dot. `ranks` is in both, and the
  // same.
  for (const Setting& setting : run.varied) row[setting.name] = setting.value;
  if (repeated) row["repetition"] = run.repetition;
  row["status"] = words[static_cast<std::size_t>(outcome.state)];
  if (!outcome.problem.empty()) row["problem"] = outcome.problem;
  if (outcome.seconds > 0) row["seconds"] = outcome.seconds;
  row.update(outcome.origin);  // what the report says of a run takes its place
  return row;
}

void add_rows(std::vector<Json>& rows, const Study& study, const Json& head,
              const std::filesystem::path& file) {
  const std::string text = read_file(file);
  plan::require_structure(text, file.string());  // values are copied by recursion
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw InputError(fmt::format("{}: is not a report", file.string()));
  if (study.command == "compare") {
    const Json schedules = json.contains("schedules") ? json.at("schedules") : Json::array({json});
    for (const Json& schedule : schedules) {
      for (const Json& policy : at(schedule, "/policies"))
        put_compared(rows.emplace_back(head), schedule, policy);
    }
    return;
  }
  Json& row = rows.emplace_back(head);
  const auto put_row = study.command == "train" ? put_train : study.command == "sim" ? put_sim : put_simulate;
  put_row(row, json);
}

/// True if all figures of a row are numbers.
bool has_numbers(const Json& row) {
  return std::ranges::all_of(row.items(), [](const auto& cell) {
    const bool figure = cell.key().starts_with("predicted_") || cell.key().starts_with("measured_");
    return !figure || cell.value().is_number();
  });
}

std::vector<std::string> columns_of(std::span<const Json> rows) {
  std::vector<std::string> columns;
  for (const Json& row : rows) {
    // A column that only later rows have stands behind the one it follows there.
    auto at = columns.begin();
    for (const auto& [name, value] : row.items()) {
      const auto found = std::ranges::find(columns, name);
      at = (found == columns.end() ? columns.insert(at, name) : found) + 1;
    }
  }
  return columns;
}

std::string cell_text(const Json& row, const std::string& name) {
  if (!row.contains(name)) return "";
  const Json& value = row.at(name);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Warns of rows of `simulate` whose makespans must not be compared; empty if there are none.
std::string note_on_units(std::span<const Json> rows) {
  std::set<std::string> stages;
  for (const Json& row : rows) {
    if (row.contains("predicted_makespan") && !row.contains("unit") && !row.contains("--per-share"))
      stages.insert(cell_text(row, "stages"));
  }
  if (stages.size() < 2) return "";
  return "\nWithout times 1 is a pass of an average stage: compare only the makespans of runs with equally\n"
         "many stages here. Times of shares of the model make all comparable: runtime.emulate with\n"
         "per_share, or --durations with --per-share.\n";
}

}  // namespace

std::vector<Json> study_rows(const Study& study, std::span<const StudyRun> runs,
                             const std::filesystem::path& folder) {
  std::vector<Json> rows;
  for (const StudyRun& run : runs) {
    const std::filesystem::path of_run = folder_of(run, folder);
    const RunOutcome outcome = read_outcome(study, of_run);
    Json head = row_of(run, outcome, study.repetitions > 1);
    if (outcome.state == RunState::done) {
      const std::filesystem::path report = of_run / report_file;
      const auto refuse = [&] {
        throw InputError(fmt::format("{}: is not a report of {}", report.string(), study.command));
      };
      const std::size_t before = rows.size();
      try {
        add_rows(rows, study, head, report);
      } catch (const Json::exception&) {
        refuse();
      }
      if (!std::all_of(rows.begin() + static_cast<std::ptrdiff_t>(before), rows.end(), has_numbers)) refuse();
    } else {
      rows.push_back(std::move(head));
    }
  }
  return rows;
}

std::string rows_csv(std::span<const Json> rows) {
  std::vector<TableRow> table = {columns_of(rows)};
  for (const Json& row : rows) {
    TableRow& cells = table.emplace_back();
    for (const std::string& column : table.front()) cells.push_back(cell_text(row, column));
  }
  return csv_text(table);
}

std::string rows_text(const Study& study, std::span<const Json> rows) {
  std::vector<std::string> names;  // of what varies
  const auto add_names = [&](const std::vector<Settings>& values) {
    for (const Settings& settings : values) {
      for (const Setting& setting : settings) {
        if (std::ranges::find(names, setting.name) == names.end()) names.push_back(setting.name);
      }
    }
  };
  add_names(study.runs);
  for (const GridLine& line : study.grid) add_names(line);
  if (study.repetitions > 1) names.emplace_back("repetition");
  if (study.command == "compare") {
    if (std::ranges::find(names, "schedule.name") == names.end()) names.emplace_back("schedule");
    names.emplace_back("policy");
  }
  const std::string found_word = study.command == "sim" ? "simulated" : "measured";
  const bool measured = study.command != "simulate";
  const std::string which = measured ? found_word + "_" : "predicted_";
  std::vector<TableRow> table = {names};
  TableRow& head = table.front();
  head.emplace_back("predicted");
  if (measured) head.insert(head.end(), {found_word, "difference"});
  head.insert(head.end(), {"bubble", "peak stashes"});
  const std::string sums = which + "gradients_summed";
  const bool summed = std::ranges::any_of(rows, [&](const Json& row) { return row.contains(sums); });
  if (summed) head.emplace_back("with gradients summed");
  for (const Json& row : rows) {
    TableRow cells;
    for (const std::string& name : names) cells.push_back(cell_text(row, name));
    const bool in_seconds = measured || cell_text(row, "unit") == "s";
    const auto number = [&](const std::string& name) {
      const auto found = row.find(name);
      return found == row.end() ? std::nullopt : std::optional(found->get<double>());
    };
    const auto time_text = [&](std::optional<double> time) {
      if (!time) return std::string();
      return in_seconds ? fmt::format("{:.2f} ms", *time * 1e3) : number_text(*time);
    };
    const std::optional<double> expected = number("predicted_makespan");
    const std::optional<double> found = number(found_word + "_makespan");
    cells.push_back(time_text(expected));
    if (measured) {
      cells.push_back(time_text(found));
      cells.push_back(expected && found ? difference_text(*found / *expected - 1) : "");
    }
    const std::optional<double> bubble = number(which + "bubble_fraction");
    cells.push_back(bubble ? percent_text(*bubble) : cell_text(row, "status"));
    cells.push_back(cell_text(row, which + "peak_stashes"));
    if (summed) cells.push_back(time_text(number(sums)));
    table.push_back(std::move(cells));
  }
  return table_text(table) + (measured ? "" : note_on_units(rows));
}

std::string rows_jsonl(std::span<const Json> rows) {
  std::string text;
  for (const Json& row : rows) text += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return text;
}

}  // namespace starpipe::cli
