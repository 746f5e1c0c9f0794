// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/schedule_csv.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "plan/formats/csv_communication.hpp"
#include "plan/formats/listing.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using Kind = CsvAction::Kind;

struct Word {
  std::string_view text;
  Kind kind;
  Pass pass = Pass::F;

  [[nodiscard]] bool takes_microbatch() const {
    return kind == Kind::compute || kind == Kind::send || kind == Kind::receive;
  }
};

// PyTorch's words. Its I is starpipe's B, and its B is starpipe's BW. PyTorch 2.5 has BW and B instead: see
// read_as_2_5.
constexpr std::array words = {
    Word{"F", Kind::compute, Pass::F},      Word{"I", Kind::compute, Pass::B},
    Word{"W", Kind::compute, Pass::W},      Word{"B", Kind::compute, Pass::BW},
    Word{"BW", Kind::compute, Pass::BW},    Word{"SEND_F", Kind::send, Pass::F},
    Word{"RECV_F", Kind::receive, Pass::F}, Word{"SEND_B", Kind::send, Pass::B},
    Word{"RECV_B", Kind::receive, Pass::B}, Word{"UNSHARD", Kind::unshard},
    Word{"RESHARD", Kind::reshard},         Word{"REDUCE_GRAD", Kind::reduce_gradient}};

std::string_view action(Pass pass) {
  return std::ranges::find_if(words, [&](const Word& w) { return w.kind == Kind::compute && w.pass == pass; })
      ->text;
}

std::string csv(const Schedule& schedule, std::vector<std::vector<JobId>> rows) {
  // These files have no word for R.
  for (std::vector<JobId>& row : rows)
    std::erase_if(row, [&](JobId id) { return schedule.job(id).pass == Pass::R; });
  std::size_t cells = 2;  // at least 2, so that the row of a worker without jobs is not a blank line
  for (const auto& row : rows) {
    const auto is_first = [&](JobId id) { return schedule.first_of_pair(id) == id; };
    cells = std::max(cells, static_cast<std::size_t>(std::ranges::count_if(row, is_first)));
  }
  std::string text;
  for (const auto& row : rows) {
    const auto word = [&](JobId id) {
      const Job job = schedule.job(id);
      return fmt::format("{}{}{}", job.stage, action(job.pass), job.microbatch);
    };
    std::size_t written = 0;
    for (const JobId id : row) {
      if (schedule.first_of_pair(id) != id) continue;  // it is written with its F
      const JobId last = schedule.last_of_pair(id);
      text += written++ == 0 ? "" : ",";
      text += last == id ? word(id) : fmt::format("({};{})OVERLAP_F_B", word(id), word(last));
    }
    text.append(cells - std::max<std::size_t>(written, 1), ',');
    text += '\n';
  }
  return text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r\v\f";
  const auto first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(blank) + 1);
}

std::optional<int> leading_number(std::string_view& text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // One below the largest int, as counts are largest + 1.
  if (error != std::errc{} || value == std::numeric_limits<int>::max()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<CsvAction> parse_action(std::string_view text) {
  CsvAction action{.text = text};
  const auto stage = leading_number(text);
  const auto word = std::ranges::find(words, text.substr(0, text.find_first_of("0123456789")), &Word::text);
  if (!stage || word == words.end()) return std::nullopt;
  text.remove_prefix(word->text.size());
  action.kind = word->kind;
  action.job = {*stage, 0, word->pass};
  if (word->takes_microbatch()) {
    const auto microbatch = leading_number(text);
    if (!microbatch) return std::nullopt;
    action.job.microbatch = *microbatch;
  }
  return text.empty() ? std::optional(action) : std::nullopt;
}

/// Returns the text of a cell for a message: one line, of bounded length.
std::string quoted(std::string_view cell) {
  std::string text = "\"";
  for (const char c : cell.substr(0, 40)) text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return text + (cell.size() > 40 ? "...\"" : "\"");
}

bool is_full_backward_of_2_5(const CsvAction& action) {
  return action.text.find("BW") != std::string_view::npos;
}

// In files of PyTorch 2.5, B next to W is the pass that later versions call I, and BW is the pass that they
// call B. A file with I is of a later version.
void read_as_2_5(std::vector<std::vector<CsvAction>>& rows) {
  std::set<std::pair<int, int>> with_weights;  // stage and micro-batch of each W
  bool has_full = false;
  for (const std::vector<CsvAction>& row : rows) {
    for (const CsvAction& action : row) {
      if (action.kind != Kind::compute) continue;
      if (action.job.pass == Pass::B) return;
      if (action.job.pass == Pass::W) with_weights.emplace(action.job.stage, action.job.microbatch);
      has_full = has_full || is_full_backward_of_2_5(action);
    }
  }
  for (std::vector<CsvAction>& row : rows) {
    for (CsvAction& action : row) {
      const bool is_b =
          action.kind == Kind::compute && action.job.pass == Pass::BW && !is_full_backward_of_2_5(action);
      if (is_b && (has_full || with_weights.contains({action.job.stage, action.job.microbatch})))
        action.job.pass = Pass::B;
    }
  }
}

class RowReader {
 public:
  RowReader(std::size_t row, const std::string& source_name) : row_(row), source_name_(source_name) {}

  std::vector<CsvAction> read(std::string_view line) {
    while (true) {
      const auto comma = line.find(',');
      std::string_view text = trim(line.substr(0, comma));
      if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
        text = trim(text.substr(1, text.size() - 2));
      }
      if (!text.empty()) read_cell(text);
      if (comma == std::string_view::npos) return std::move(actions_);
      line.remove_prefix(comma + 1);
      ++cell_;
    }
  }

 private:
  void read_cell(std::string_view text) {
    if (!text.starts_with('(')) return add(text);
    constexpr std::string_view overlap = ")OVERLAP_F_B";
    constexpr std::string_view batch = ")BATCH_P2P";
    const bool overlaps = text.ends_with(overlap);
    if (!overlaps && !text.ends_with(batch)) {
      fail(text,
           "is not an overlapped pair, such as (0F1;3B0)OVERLAP_F_B, nor a batch of sends and receives, such "
           "as (0SEND_F1;0RECV_B0)BATCH_P2P");
    }
    const std::size_t before = actions_.size();
    std::string_view parts = text.substr(1, text.size() - 1 - (overlaps ? overlap : batch).size());
    for (std::size_t end = parts.find(';'); end != std::string_view::npos; end = parts.find(';')) {
      add(trim(parts.substr(0, end)));
      parts.remove_prefix(end + 1);
    }
    add(trim(parts));
    const auto added = std::span(actions_).subspan(before);
    if (overlaps && added.size() != 2) fail(text, "is not a pair, such as (0F1;3B0)OVERLAP_F_B");
    for (const CsvAction& action : added) {
      const bool transfers = action.kind == Kind::send || action.kind == Kind::receive;
      if (overlaps && action.kind != Kind::compute) fail(text, "overlaps an action that computes nothing");
      if (!overlaps && !transfers) fail(text, "batches an action that is not a send or a receive");
    }
    if (overlaps) return join(added, text);
    // All transfers of a batch start together, so its receives do not delay its sends.
    std::stable_partition(added.begin(), added.end(),
                          [](const CsvAction& action) { return action.kind != Kind::receive; });
  }

  void join(std::span<CsvAction> pair, std::string_view text) const {
    if (pair.front().job.pass != Pass::F) std::swap(pair.front(), pair.back());
    if (pair.front().job.pass != Pass::F || !gives_input_gradient(pair.back().job.pass))
      fail(text, "is not F and a backward pass");
    pair.front().with_next = true;
  }

  void add(std::string_view text) {
    auto action = parse_action(text);
    if (!action) {
      fail(text,
           "is not an action; expected a stage, one of F, I, W, B, BW, SEND_F, RECV_F, SEND_B, RECV_B and a "
           "micro-batch, as in 0F0, or a stage and UNSHARD, RESHARD or REDUCE_GRAD");
    }
    action->cell = cell_;
    actions_.push_back(*action);
  }

  [[noreturn]] void fail(std::string_view text, std::string_view message) const {
    throw InputError(
        fmt::format("{}: {}: {} {}", source_name_, csv_position(row_, cell_), quoted(text), message));
  }

  std::size_t row_;
  const std::string& source_name_;
  std::size_t cell_ = 0;
  std::vector<CsvAction> actions_;
};

// Without R, O and L the file would be a schedule that needs more memory.
void check_has_words(const Schedule& schedule) {
  for (const auto& [has, what] : {std::pair(schedule.recomputes(), "that F is computed again"),
                                  {schedule.copies(), "that stashes are copied"},
                                  {schedule.slices() > 1, "that micro-batches are slices"}}) {
    if (has) throw InputError(fmt::format("a CSV file cannot say {}; a JSON file can", what));
  }
}

}  // namespace

std::string schedule_csv(const Schedule& schedule, const Timeline& timeline) {
  check_has_words(schedule);
  return csv(schedule, timeline.order);
}

std::string schedule_csv(const Schedule& schedule) {
  if (schedule.discipline() != Discipline::ordered) return schedule_csv(schedule, simulate(schedule));
  check_has_words(schedule);
  return csv(schedule, schedule.rows());
}

Schedule schedule_from_csv(std::string_view text, const std::string& source_name,
                           const GraphOfStages& graph) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  if (text.empty()) {
    throw InputError(fmt::format("{}: empty; expected one row of actions per worker", source_name));
  }
  std::vector<std::vector<CsvAction>> rows;
  while (!text.empty()) {
    const auto newline = text.find('\n');
    rows.push_back(RowReader(rows.size(), source_name).read(text.substr(0, newline)));
    text = newline == std::string_view::npos ? std::string_view{} : text.substr(newline + 1);
  }
  read_as_2_5(rows);
  Listing listing{.source_name = source_name, .position_text = csv_position, .graph = graph};
  for (const std::vector<CsvAction>& row : rows) {
    const auto worker = static_cast<int>(listing.rows.size());
    auto& jobs = listing.rows.emplace_back();
    for (const CsvAction& action : row) {
      if (action.kind == Kind::compute)
        jobs.push_back(
            {.job = action.job, .weights = worker, .cell = action.cell, .with_next = action.with_next});
    }
  }
  Schedule schedule = schedule_from_listing(listing);
  check_communication(schedule, rows, source_name);
  return schedule;
}

}  // namespace starpipe::plan
