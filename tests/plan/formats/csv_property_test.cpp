// SPDX-License-Identifier: Apache-2.0
// PyTorch's CSV, with and without communication, against a slow reader written from the format's description.
#include <algorithm>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/formats/slow_csv_reader.hpp"
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

TEST(PyTorchCsv, OverlappedPairsAreTwoJobsAtOnce) {
  const Schedule pairs = schedule_from_csv(
      "0F0,0F1,(0F2;1B0)OVERLAP_F_B, ( 1F1 ; 0B0 )OVERLAP_F_B ,1B1,0B1,1F2,1B2,0B2\n1F0", "x.csv");
  const Schedule split = schedule_from_csv("0F0,0F1,0F2,1B0,1F1,0B0,1B1,0B1,1F2,1B2,0B2\n1F0", "x.csv");
  EXPECT_TRUE(pairs.has_pairs());
  EXPECT_EQ(schedule_csv(pairs.without_pairs()), schedule_csv(split));
  EXPECT_EQ(schedule_csv(pairs),
            "0F0,0F1,(0F2;1B0)OVERLAP_F_B,(1F1;0B0)OVERLAP_F_B,1B1,0B1,1F2,1B2,0B2\n1F0,,,,,,,,\n");
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
