// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

#include "formats_common.hpp"
#include "starpipe/plan/error.hpp"
#include "starpipe/plan/formats.hpp"

namespace starpipe::plan {
namespace {

// PyTorch's letters: B is its full backward, I the gradient of the input.
char action(Pass pass) {
  switch (pass) {
    case Pass::F:
      return 'F';
    case Pass::B:
      return 'I';
    case Pass::W:
      return 'W';
    case Pass::BW:
      break;
  }
  return 'B';
}

std::optional<Pass> pass_of(char letter) {
  for (const Pass pass : {Pass::F, Pass::B, Pass::W, Pass::BW}) {
    if (action(pass) == letter) return pass;
  }
  return std::nullopt;
}

std::string csv(const Schedule& schedule, const std::vector<std::vector<JobId>>& rows) {
  std::size_t cells = 2;  // so that the row of a worker without jobs is no blank line
  for (const auto& row : rows) cells = std::max(cells, row.size());
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Job job = schedule.job(row[i]);
      fmt::format_to(std::back_inserter(text), "{}{}{}{}", i == 0 ? "" : ",", job.stage, action(job.pass),
                     job.microbatch);
    }
    text.append(cells - std::max<std::size_t>(row.size(), 1), ',');
    text += '\n';
  }
  return text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
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

std::optional<Job> parse_action(std::string_view cell) {
  const auto stage = leading_number(cell);
  if (!stage || cell.empty()) return std::nullopt;
  const auto pass = pass_of(cell.front());
  cell.remove_prefix(1);
  const auto microbatch = leading_number(cell);
  if (!pass || !microbatch || !cell.empty()) return std::nullopt;
  return Job{*stage, *microbatch, *pass};
}

/// For a message: one line, not too long.
std::string quoted(std::string_view cell) {
  std::string text = "\"";
  for (const char c : cell.substr(0, 40)) text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return text + (cell.size() > 40 ? "...\"" : "\"");
}

std::string where(std::size_t row, std::size_t cell) {
  return fmt::format("row {}, cell {}", row + 1, cell + 1);
}

std::vector<detail::ListedJob> parse_row(std::string_view line, std::size_t row,
                                         const std::string& source_name) {
  std::vector<detail::ListedJob> jobs;
  for (std::size_t cell = 0;; ++cell) {
    const auto comma = line.find(',');
    std::string_view text = trim(line.substr(0, comma));
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
      text = trim(text.substr(1, text.size() - 2));
    }
    if (!text.empty()) {
      const auto job = parse_action(text);
      if (!job) {
        throw InputError(fmt::format(
            "{}: {}: {} is no compute action; expected a stage, one of F, I, W, B, and a micro-batch, "
            "as in 0F0",
            source_name, where(row, cell), quoted(text)));
      }
      jobs.push_back({*job, static_cast<int>(row), cell});
    }
    if (comma == std::string_view::npos) return jobs;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string schedule_csv(const Schedule& schedule, const Timeline& timeline) {
  return csv(schedule, detail::run_order(schedule, timeline));
}

std::string schedule_csv(const Schedule& schedule) {
  if (schedule.discipline() != Discipline::ordered) return schedule_csv(schedule, simulate(schedule));
  std::vector<std::vector<JobId>> rows;
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    const auto order = schedule.order(worker);
    rows.emplace_back(order.begin(), order.end());
  }
  return csv(schedule, rows);
}

Schedule schedule_from_csv(std::string_view text, const std::string& source_name) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  detail::Listing listing;
  listing.source_name = source_name;
  listing.where = where;
  while (!text.empty()) {
    const auto newline = text.find('\n');
    listing.rows.push_back(parse_row(text.substr(0, newline), listing.rows.size(), source_name));
    text = newline == std::string_view::npos ? std::string_view{} : text.substr(newline + 1);
  }
  if (listing.rows.empty()) {
    throw InputError(fmt::format("{}: empty; expected one row of actions a worker", source_name));
  }
  return detail::schedule_from_listing(listing);
}

}  // namespace starpipe::plan
