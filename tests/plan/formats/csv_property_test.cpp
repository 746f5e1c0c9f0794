// SPDX-License-Identifier: Apache-2.0
// PyTorch's CSV, with and without communication, against a slow reader written from the format's description.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using Grid = std::vector<std::vector<std::string>>;
using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t end) { return random() % end; }

std::string text_of(const Grid& grid) {
  std::string text;
  for (const auto& row : grid) {
    for (std::size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + row[i];
    text += '\n';
  }
  return text;
}

std::string cell_of(const Job& job, const char* action = nullptr) {
  const std::map<Pass, std::string> letters = {
      {Pass::F, "F"}, {Pass::B, "I"}, {Pass::W, "W"}, {Pass::BW, "B"}};
  return std::to_string(job.stage) + (action != nullptr ? action : letters.at(job.pass)) +
         std::to_string(job.microbatch);
}

Grid compute_only(const Schedule& schedule) {
  Grid grid;
  for (int w = 0; w < schedule.workers(); ++w) {
    grid.emplace_back();
    for (const JobId id : schedule.order(w)) grid.back().push_back(cell_of(schedule.job(id)));
  }
  return grid;
}

// Adds communication. Each result is sent as soon as it is computed. It is received either at once, as
// PyTorch lowers schedules, or right before it is used.
Grid with_communication(const Schedule& schedule, Random& random) {
  Grid grid(index(schedule.workers()));
  const auto row = [&](JobId id) -> std::vector<std::string>& { return grid[index(schedule.compute(id))]; };
  std::map<JobId, std::string> receives;  // cells that receive the inputs of jobs that have not run yet
  std::map<std::pair<int, int>, int> left;
  for (const JobId id : schedule.order()) ++left[{schedule.compute(id), schedule.job(id).stage}];
  for (const auto& [place, jobs] : left) {
    grid[index(place.first)].push_back(std::to_string(place.second) + "UNSHARD");
  }
  for (const JobId id : topological_order(schedule)) {
    const Job job = schedule.job(id);
    if (receives.contains(id)) row(id).push_back(receives.at(id));
    row(id).push_back(cell_of(job));
    if (--left.at({schedule.compute(id), job.stage}) == 0) {
      row(id).push_back(std::to_string(job.stage) + "RESHARD");
      row(id).push_back(std::to_string(job.stage) + "REDUCE_GRAD");
    }
    const int to = job.stage + (job.pass == Pass::F ? 1 : -1);
    if (job.pass == Pass::W || to < 0 || to >= schedule.stages()) continue;
    const JobId next =
        job.pass == Pass::F ? schedule.forward(to, job.microbatch) : schedule.backward(to, job.microbatch);
    if (schedule.compute(next) == schedule.compute(id)) continue;
    row(id).push_back(cell_of(job, job.pass == Pass::F ? "SEND_F" : "SEND_B"));
    const std::string receive =
        cell_of({to, job.microbatch, job.pass}, job.pass == Pass::F ? "RECV_F" : "RECV_B");
    if (random() % 2 == 0) {
      row(next).push_back(receive);
    } else {
      receives[next] = receive;
    }
  }
  return grid;
}

std::vector<Schedule> schedules(int max_microbatches) {
  std::vector<Schedule> all;
  for (const ScheduleEntry& entry : schedule_entries()) {
    for (const auto& [workers, microbatches] : {std::pair{1, 2}, {2, 4}, {3, 6}, {4, 8}}) {
      if (microbatches > max_microbatches) continue;
      ScheduleRequest request;
      request.workers = workers;
      request.microbatches = microbatches;
      if (entry.name.ends_with("lpp")) request.groups = 1;
      try {
        all.push_back(make_schedule(entry.name, request));
      } catch (const InputError&) {
        // The schedule is not defined for these sizes.
      }
    }
  }
  return all;
}

bool same_orders(const Schedule& a, const Schedule& b) { return compute_only(a) == compute_only(b); }

// ----- The slow reader: sets and sweeps, nothing shared with the library but `Job`.

struct Cell {
  int stage = 0;
  std::string word;
  int microbatch = -1;

  friend auto operator<=>(const Cell&, const Cell&) = default;
};

std::string stripped(std::string text) {
  const auto blank = [](char c) { return std::string_view(" \t\r\v\f").find(c) != std::string_view::npos; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  while (!text.empty() && blank(text.front())) text.erase(0, 1);
  return text;
}

std::optional<Cell> slow_cell(const std::string& text) {
  static const std::regex pattern(
      "([0-9]{1,6})(?:(F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]{1,6})|(UNSHARD|RESHARD|REDUCE_GRAD))");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) return std::nullopt;
  if (match[4].matched) return Cell{std::stoi(match[1]), match[4]};
  return Cell{std::stoi(match[1]), match[2], std::stoi(match[3])};
}

std::optional<std::vector<std::vector<Cell>>> slow_parse(std::string text) {
  if (text.starts_with("\xef\xbb\xbf")) text = text.substr(3);
  while (!text.empty() && std::string(" \t\r\n").find(text.back()) != std::string::npos) text.pop_back();
  if (text.empty()) return std::nullopt;
  std::vector<std::vector<Cell>> rows(1);
  text += '\n';
  std::string cell;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',' && text[i] != '\n') {
      cell += text[i];
      continue;
    }
    cell = stripped(cell);
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = stripped(cell.substr(1, cell.size() - 2));
    }
    static const std::regex overlapped("\\(([^;]*);([^;]*)\\)OVERLAP_F_B");
    std::smatch pair;
    std::vector<std::string> parts = {cell};
    if (cell.starts_with('(') && std::regex_match(cell, pair, overlapped)) {
      parts = {stripped(pair[1]), stripped(pair[2])};
      for (const std::string& part : parts) {
        if (const auto read = slow_cell(part); !read || read->word.size() != 1) return std::nullopt;
      }
    }
    for (const std::string& part : parts) {
      if (part.empty()) continue;
      const auto read = slow_cell(part);
      if (!read) return std::nullopt;
      rows.back().push_back(*read);
    }
    cell.clear();
    if (text[i] == '\n' && i + 1 < text.size()) rows.emplace_back();
  }
  return rows;
}

// True if the rows can run to their end, each in its order, and are all that a step needs.
bool slow_accepts(const std::string& text) {
  const auto rows = slow_parse(text);
  if (!rows) return false;
  int stages = 0;
  int microbatches = 0;
  bool communicates = false;
  std::map<Cell, std::size_t> row_of;  // the row of each cell that computes, sends or receives
  std::set<std::pair<std::size_t, int>> unsharding;
  for (std::size_t r = 0; r < rows->size(); ++r) {
    for (const Cell& c : (*rows)[r]) {
      const bool computes = c.word.size() == 1;
      communicates = communicates || !computes;
      if (computes) stages = std::max(stages, c.stage + 1);
      if (computes) microbatches = std::max(microbatches, c.microbatch + 1);
      if (c.word == "UNSHARD") unsharding.insert({r, c.stage});
      if (c.microbatch >= 0 && !row_of.emplace(c, r).second) return false;  // twice
    }
  }
  if (stages == 0) return false;
  const auto has = [&](int s, const char* word, int b) { return row_of.contains(Cell{s, word, b}); };
  const auto row = [&](int s, const char* word, int b) { return row_of.at(Cell{s, word, b}); };
  for (int s = 0; s < stages; ++s) {
    for (int b = 0; b < microbatches; ++b) {
      if (!has(s, "F", b)) return false;
      if (has(s, "B", b) ? has(s, "I", b) || has(s, "W", b) : !has(s, "I", b) || !has(s, "W", b))
        return false;
    }
  }
  const auto backward = [&](int s, int b) { return has(s, "B", b) ? "B" : "I"; };

  std::set<Cell> done;
  std::set<std::tuple<std::size_t, int, std::string>> states;  // "unsharded", "reduced"
  const auto is_done = [&](int s, const std::string& word, int b) { return done.contains(Cell{s, word, b}); };
  enum class Answer { ready, waits, never };
  const auto ask = [&](const Cell& c, std::size_t r) {
    const auto [s, word, b] = c;
    const auto when = [](bool ready) { return ready ? Answer::ready : Answer::waits; };
    // Without communication, a result is at once on every worker that needs it.
    const auto input = [&](const char* receive, int from, const char* pass) {
      if (!communicates || row(from, pass, b) == r) return is_done(from, pass, b);
      return is_done(s, receive, b) && row(s, receive, b) == r;
    };
    const bool unsharded = states.contains({r, s, "unsharded"});
    if (word.size() == 1) {
      if (unsharding.contains({r, s}) && !unsharded) return Answer::never;
      if (communicates && row(s, "F", b) != r) return Answer::never;
      if (word != "F" && states.contains({r, s, "reduced"})) return Answer::never;
    }
    if (word == "F") return when(s == 0 || input("RECV_F", s - 1, "F"));
    if (word == "W") return when(is_done(s, "I", b));
    if (word == "B" || word == "I") {
      return when(is_done(s, "F", b) && (s + 1 == stages || input("RECV_B", s + 1, backward(s + 1, b))));
    }
    if (word == "UNSHARD" || word == "RESHARD" || word == "REDUCE_GRAD") {
      const bool here = std::ranges::any_of(
          (*rows)[r], [s = s](const Cell& other) { return other.stage == s && other.word.size() == 1; });
      if (!here) return Answer::never;
      if (word == "REDUCE_GRAD") return states.contains({r, s, "reduced"}) ? Answer::never : Answer::ready;
      return unsharded == (word == "RESHARD") ? Answer::ready : Answer::never;
    }
    // A transfer belongs to a job of this row and to a neighbour of that job in another row.
    const bool forward = word.back() == 'F';
    const bool sends = word.starts_with("SEND");
    const int peer = forward == sends ? s + 1 : s - 1;
    if (s >= stages || b >= microbatches || peer < 0 || peer >= stages) return Answer::never;
    const char* const mine = forward ? "F" : backward(s, b);
    const char* const theirs = forward ? "F" : backward(peer, b);
    if (row(s, mine, b) != r || row(peer, theirs, b) == r) return Answer::never;
    if (sends) return is_done(s, mine, b) ? Answer::ready : Answer::never;
    if (is_done(s, mine, b)) return Answer::never;
    return when(is_done(peer, forward ? "SEND_F" : "SEND_B", b));
  };

  std::vector<std::size_t> next(rows->size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < rows->size(); ++r) {
      while (next[r] < (*rows)[r].size()) {
        const Cell& c = (*rows)[r][next[r]];
        const Answer answer = ask(c, r);
        if (answer == Answer::never) return false;
        if (answer == Answer::waits) break;
        done.insert(c);
        if (c.word == "UNSHARD") states.insert({r, c.stage, "unsharded"});
        if (c.word == "RESHARD") states.erase({r, c.stage, "unsharded"});
        if (c.word == "REDUCE_GRAD") states.insert({r, c.stage, "reduced"});
        ++next[r];
        progress = true;
      }
    }
  }
  for (std::size_t r = 0; r < rows->size(); ++r) {
    if (next[r] < (*rows)[r].size()) return false;
  }
  return true;
}

// ----- Tests

TEST(PyTorchCsv, RoundTripsEveryScheduleWithoutLoss) {
  for (const Schedule& schedule : schedules(8)) {
    SCOPED_TRACE(schedule.name());
    const std::string text = schedule_csv(schedule);

    const Schedule read = schedule_from_csv(text, "x.csv");

    EXPECT_TRUE(same_orders(read, schedule));
    EXPECT_EQ(schedule_csv(read), text);
    EXPECT_EQ(schedule_csv(schedule_from_csv(schedule_csv(read), "x.csv")), text);
    EXPECT_EQ(simulate(read).makespan, simulate(schedule).makespan);
    EXPECT_TRUE(slow_accepts(text));
  }
}

TEST(PyTorchCsv, ReadsTheFormWithCommunication) {
  Random random(1);
  int count = 0;
  for (const Schedule& schedule : schedules(8)) {
    // FSDP's weights come from other workers, which the CSV cannot say. Its orders can be used all the same.
    for (int i = 0; i < 3; ++i, ++count) {
      const std::string text = text_of(with_communication(schedule, random));
      SCOPED_TRACE(schedule.name() + "\n" + text);
      EXPECT_TRUE(slow_accepts(text));
      EXPECT_TRUE(same_orders(schedule_from_csv(text, "x.csv"), schedule));
    }
  }
  EXPECT_GT(count, 200);
}

TEST(PyTorchCsv, OverlappedPairsAreTwoJobsInOrder) {
  const Schedule pairs = schedule_from_csv(
      "0F0,0F1,(0F2;1B0)OVERLAP_F_B, ( 1F1 ; 0B0 )OVERLAP_F_B ,1B1,0B1,1F2,1B2,0B2\n1F0", "x.csv");
  const Schedule split = schedule_from_csv("0F0,0F1,0F2,1B0,1F1,0B0,1B1,0B1,1F2,1B2,0B2\n1F0", "x.csv");
  EXPECT_EQ(pairs, split);
  EXPECT_EQ(schedule_csv(pairs), schedule_csv(split));
}

TEST(PyTorchCsv, NamesWhatIsWrongWithCommunication) {
  const std::string second = "\n1RECV_F0,1F0,1B0,1SEND_B0\n";
  struct Case {
    std::string text;
    std::vector<std::string> named;
  };
  const std::vector<Case> cases = {
      {"0F0,0RECV_B0,0B0" + second, {"row 2, cell 1", "F(1,0) can never start", "0SEND_F0"}},
      {"0SEND_F0,0F0,0RECV_B0,0B0" + second, {"row 1, cell 1", "0SEND_F0 comes before F(0,0)"}},
      {"0F0,0SEND_F0,0B0,0RECV_B0" + second, {"row 1, cell 3", "BW(0,0) can never start", "RECV_B"}},
      {"0F0,0RECV_B0,0SEND_F0,0B0" + second,
       {"row 1, cell 2", "BW(0,0) can never start", "1SEND_B0 (row 2, cell 4)", "1RECV_F0 (row 2, cell 1)",
        "0SEND_F0 (row 1, cell 3)", "deadlock"}},
      {"0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0" + second, {"row 1, cell 3", "twice", "row 1, cell 2"}},
      {"0F0,0SEND_F0,0RECV_B0,0RECV_B0,0B0" + second, {"row 1, cell 4", "twice", "row 1, cell 3"}},
      {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0" + second, {"row 1, cell 5", "no other worker"}},
      {"0RECV_F0,0F0,0SEND_F0,0RECV_B0,0B0" + second, {"row 1, cell 1", "nothing from another worker"}},
      {"0F0,1SEND_F0,0RECV_B0,0B0" + second, {"row 1, cell 2", "1SEND_F0", "F(1,0)", "row 2"}},
      {"0F0,0SEND_F7,0RECV_B0,0B0" + second,
       {"row 1, cell 2", "0SEND_F7", "no stage 0 with a micro-batch 7"}},
      {"0F0,0SEND_F0,0RECV_B0,0RESHARD,0B0" + second, {"row 1, cell 4", "0RESHARD", "sharded already"}},
      {"0UNSHARD,0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0" + second, {"row 1, cell 2", "unsharded already"}},
      {"0UNSHARD,0F0,0RESHARD,0SEND_F0,0RECV_B0,0B0" + second, {"row 1, cell 6", "BW(0,0)", "not unsharded"}},
      {"1UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0" + second, {"row 1, cell 1", "nothing of stage 1"}},
      {"0F0,0SEND_F0,0RECV_B0,0REDUCE_GRAD,0B0" + second, {"row 1, cell 5", "BW(0,0)", "0REDUCE_GRAD"}},
      {"0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0REDUCE_GRAD" + second, {"row 1, cell 6", "twice"}},
      {"0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n", {"row 1, cell 2", "BW(0,0) can never start", "RECV_B"}},
      {"0F0,0REDUCE_GRAD\n0B0\n", {"row 2, cell 1", "BW(0,0) can never start", "F(0,0) runs in row 1"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.text);
    EXPECT_FALSE(slow_accepts(one.text));
    const std::string message = message_of([&] { schedule_from_csv(one.text, "bad.csv"); });
    EXPECT_NE(message, "") << "accepted";
    for (const std::string& word : one.named) EXPECT_NE(message.find(word), std::string::npos) << message;
  }
}

// ----- Mutations

constexpr std::string_view letters = "0123456789FIWBSENDRCV_UHAGOL();, \"\t\r\n-x";

void mutate_cell(Grid& grid, Random& random) {
  auto& row = grid[below(random, grid.size())];
  if (row.empty()) return;
  const std::size_t i = below(random, row.size());
  const auto at = row.begin() + static_cast<std::ptrdiff_t>(i);
  std::string& cell = row[i];
  switch (below(random, 13)) {
    case 0:
      row.erase(at);
      break;
    case 1:
      cell.clear();
      break;
    case 2:
      row.insert(at, std::string(cell));
      break;
    case 3:
      std::swap(cell, row[below(random, row.size())]);
      break;
    case 4: {
      auto& other = grid[below(random, grid.size())];
      if (!other.empty()) std::swap(cell, other[below(random, other.size())]);
      break;
    }
    case 5:
      if (!cell.empty()) cell[below(random, cell.size())] = letters[below(random, letters.size())];
      break;
    case 6:  // another stage or micro-batch
      if (!cell.empty()) (random() % 2 == 0 ? cell.front() : cell.back()) = letters[below(random, 4)];
      break;
    case 7:
      row.resize(i);
      break;
    case 8:
      row.resize(row.size() + 1 + below(random, 3));
      break;
    case 9:
      cell = '"' + cell + '"';
      break;
    case 10:
      cell = "  " + cell + "\t";
      break;
    case 11:
      if (i + 1 < row.size()) {
        cell = "(" + cell + ";" + row[i + 1] + ")OVERLAP_F_B";
        row.erase(at + 1);
      }
      break;
    default:  // moves the cell within its row, often not far
      if (i + 1 < row.size()) std::swap(cell, row[i + 1]);
  }
}

std::string mutate_text(std::string text, Random& random) {
  const std::size_t at = below(random, text.size() + 1);
  switch (below(random, 8)) {
    case 0:
      return "\xef\xbb\xbf" + text;
    case 1:
      return std::regex_replace(text, std::regex("\n"), "\r\n");
    case 2:
      return text + "\n\r\n \n";
    case 3:
      return text.insert(text.find('\n', at == text.size() ? 0 : at) + 1, "\n");
    case 4:
      return text.substr(0, at);
    case 5:
      return text.insert(at, 1, letters[below(random, letters.size())]);
    case 6:
      return text.insert(at, 1, '\0');
    default:
      return text;
  }
}

TEST(PyTorchCsv, MutatedFilesAreReadRightOrRefusedByName) {
  Random random(20261121);
  const std::vector<Schedule> originals = schedules(6);
  const std::regex place("row ([0-9]+), cell ([0-9]+)");
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < rounds(10000); ++i) {
    const Schedule& original = originals[below(random, originals.size())];
    Grid grid = random() % 2 == 0 ? compute_only(original) : with_communication(original, random);
    for (std::size_t n = below(random, 4); n > 0; --n) mutate_cell(grid, random);
    std::string text = text_of(grid);
    if (random() % 3 == 0) text = mutate_text(text, random);
    SCOPED_TRACE(original.name() + "\n" + text);
    const bool sound = slow_accepts(text);
    try {
      const Schedule read = schedule_from_csv(text, "m.csv");
      ++accepted;
      ASSERT_TRUE(sound);
      ASSERT_TRUE(check(read).ok()) << check(read).problem;
      ASSERT_EQ(compute_only(schedule_from_csv(schedule_csv(read), "m.csv")), compute_only(read));
    } catch (const InputError& error) {
      ++refused;
      const std::string message = error.what();
      ASSERT_FALSE(sound) << message;
      ASSERT_TRUE(message.starts_with("m.csv: ")) << message;
      ASSERT_EQ(message.find('\n'), std::string::npos) << message;
      if (message == "m.csv: no jobs" || message.starts_with("m.csv: empty")) continue;
      std::smatch named;
      ASSERT_TRUE(std::regex_search(message, named, place)) << message;
      ASSERT_LE(std::stoi(named[1]), std::ranges::count(text, '\n') + 1) << message;
    }
  }
  // Mutations must give both sound and unsound files, else they are too weak or too strong.
  EXPECT_GT(accepted, rounds(1000));
  EXPECT_GT(refused, rounds(1000));
}

}  // namespace
}  // namespace starpipe::plan
