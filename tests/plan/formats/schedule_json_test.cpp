// SPDX-License-Identifier: Apache-2.0
// Schedules and results as JSON.
#include "starpipe/plan/formats/schedule_json.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/formats/bad_input.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/trace_json.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using namespace nlohmann::literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ScheduleJson, StatesTheFiguresOfTheDesign) {
  const Schedule schedule = named("1f1b", 4, 8);

  const nlohmann::json json = schedule_json(schedule, {}, simulate(schedule));

  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["workers"], 4);
  EXPECT_EQ(json["stages"], 4);
  EXPECT_EQ(json["microbatches"], 8);
  EXPECT_EQ(json["split_backward"], false);
  EXPECT_EQ(json["discipline"], "ordered");
  EXPECT_EQ(json["durations"], R"({"F": 1, "B": 1, "W": 1})"_json);
  EXPECT_EQ(json["comm"], 0);
  EXPECT_EQ(json["makespan"], 33);
  EXPECT_TRUE(json["makespan"].is_number_integer()) << "written as 33, not as 33.0";
  EXPECT_NEAR(json["bubble_fraction"].get<double>(), 0.2727, 5e-5);
  EXPECT_EQ(json["peak_stashes"], "[4, 3, 2, 1]"_json);
  EXPECT_EQ(json["received"]["activations"], "[0, 8, 8, 8]"_json);
  EXPECT_EQ(json["received"]["gradients"], "[8, 8, 8, 0]"_json);
  EXPECT_EQ(json["received"]["weights"], "[0, 0, 0, 0]"_json);
  ASSERT_EQ(json["ops"].size(), 4U);
  EXPECT_EQ(json["ops"][0].size(), 16U);
  EXPECT_EQ(json["ops"][0][0],
            R"({"op": "F", "stage": 0, "microbatch": 0, "start": 0, "end": 1, "weights_from": 0})"_json);
  EXPECT_EQ(json["ops"][3][1]["op"], "BW");
  EXPECT_EQ(json["ops"][3][1]["end"], 6);
  EXPECT_FALSE(json.contains("stage_graph"));
  EXPECT_FALSE(json.contains("memory_limits"));
}

TEST(ScheduleJson, RoundTripsEverySchedule) {
  Costs uneven;
  uneven.links = Link{.alpha = 0.25};
  for (const Schedule& schedule : examples()) {
    uneven.durations.clear();
    for (int s = 0; s < schedule.stages(); ++s) uneven.durations.push_back({1.0 + s % 2, 1.5, 0.5 * s});
    for (const Costs& costs : {Costs{}, uneven}) {
      const std::string text = json_text(schedule_json(schedule, costs, simulate(schedule, costs)));

      const ImportedSchedule read = schedule_from_json(text, schedule.name() + ".json");

      ASSERT_TRUE(check(read.schedule).ok()) << check(read.schedule).problem;
      const auto again = schedule_json(read.schedule, read.costs, simulate(read.schedule, read.costs));
      EXPECT_EQ(json_text(again), text) << schedule.name();
    }
  }
}

TEST(ScheduleJson, RoundTripsEveryCost) {
  const Schedule schedule = named("1f1b", 2, 3);
  Costs costs;
  costs.sizes = {{10, 20, 30, 40, 50}, {1, 2, 3, 4, 5}};
  costs.links = Link{.alpha = 0.5, .beta = 0.125};
  costs.prefetch = false;
  const auto json = schedule_json(schedule, costs, simulate(schedule, costs));

  const ImportedSchedule read = schedule_from_json(json.dump(), "costs.json");
  EXPECT_EQ(read.unit, "");
  EXPECT_EQ(
      schedule_from_json(schedule_json(schedule, costs, simulate(schedule, costs), "s").dump(), "x").unit,
      "s");

  EXPECT_EQ(schedule_json(read.schedule, read.costs, simulate(read.schedule, read.costs)), json);
  EXPECT_EQ(json["received_bytes"]["activations"], std::vector<int>({0, 30}));
}

TEST(ScheduleJson, RoundTripsTheWorkersOfARank) {
  const Schedule schedule = named("fsdp", 4, 4);
  Costs costs;
  costs.sizes.assign(4, {.weights = 2});
  costs.workers_of_rank = 2;
  costs.ordered_messages = true;
  costs.relays = true;
  costs.messages_pass_hosts = true;
  costs.host = HomeLink{.link = {.alpha = 0.5}};
  const Links two_levels({{.workers = 2, .link = {.alpha = 0, .beta = 1}, .sharing = Sharing::fair},
                          {.link = {.alpha = 0, .beta = 1}, .sharing = Sharing::fair}});
  for (const Links& links : {two_levels, Links(Link{.alpha = 1, .beta = 1}), Links(Link{.alpha = 1})}) {
    costs.links = links;
    const Timeline timeline = simulate(schedule, costs);
    const ImportedSchedule read = schedule_from_json(schedule_json(schedule, costs, timeline).dump(), "file");
    EXPECT_EQ(read.costs.workers_of_rank, 2);
    EXPECT_TRUE(read.costs.ordered_messages);
    EXPECT_TRUE(read.costs.relays);
    EXPECT_TRUE(read.costs.messages_pass_hosts);
    EXPECT_EQ(simulate(read.schedule, read.costs).makespan, timeline.makespan);
  }
}

TEST(ScheduleJson, RoundTripsTablesAndPorts) {
  const Schedule schedule = named("1f1b", 4, 4);
  Costs costs;
  costs.sizes = {{.activation = 40, .gradient = 20}};
  const Link table{.alpha = 0.5, .beta = 0.25, .times = {{16, 1}, {32, 4}}};
  const Links with_ports(
      {{.workers = 2, .link = table, .sharing = Sharing::fair},
       {.link = {.alpha = 1, .beta = 1}, .sharing = Sharing::in_order, .ports = {{1, 2}}}});
  for (const Links& links :
       {with_ports, Links(table), Links({{.link = {.beta = 1}, .ports = {{2, 3}, {3, 0.5}}}})}) {
    costs.links = links;
    const Timeline timeline = simulate(schedule, costs);
    const ImportedSchedule read = schedule_from_json(schedule_json(schedule, costs, timeline).dump(), "file");
    EXPECT_EQ(read.costs.links, links);
    EXPECT_EQ(simulate(read.schedule, read.costs).makespan, timeline.makespan);
  }
}

TEST(ScheduleJson, RoundTripsSharedWeights) {
  const Schedule schedule = named("1f1b", 3, 2);
  Costs costs;
  costs.sizes = {{1, 2, 3, 4, 5}, {1, 2, 3, 4, 0, 0, false}, {1, 2, 3, 4, 7}};
  costs.shared = {{{0, 2}, 100, 200}, {{1, 2}, 50, 0}};
  const Timeline timeline = simulate(schedule, costs);
  const ImportedSchedule read = schedule_from_json(schedule_json(schedule, costs, timeline).dump(), "file");
  ASSERT_EQ(read.costs.shared.size(), 2U);
  for (std::size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(read.costs.shared[k].stages, costs.shared[k].stages);
    EXPECT_EQ(read.costs.shared[k].weights, costs.shared[k].weights);
    EXPECT_EQ(read.costs.shared[k].master, costs.shared[k].master);
  }
  for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(read.costs.sizes[s].has_weights, s != 1);
  const auto transfers = count_transfers(read.schedule, read.costs);
  EXPECT_EQ(transfers[2].weights.bytes, 100U + 50U) << "worker 2 holds neither set";
  EXPECT_EQ(transfers[0].weight_gradients.bytes, 200U);
}

TEST(ScheduleJson, LeavesOutAPrefetchWithoutEffect) {
  const Schedule schedule = named("1f1b", 2, 3);
  Costs costs;
  costs.prefetch = false;

  const auto json = schedule_json(schedule, costs, simulate(schedule, costs));

  EXPECT_FALSE(json.contains("prefetch"));
  EXPECT_NO_THROW(schedule_from_json(json.dump(), "free.json"));
}

TEST(ScheduleJson, OnlyOpsIsRequired) {
  const auto read = schedule_from_json(R"({"ops": [
      [{"op": "F", "stage": 0, "microbatch": 0}, {"op": "BW", "stage": 0, "microbatch": 0}],
      [{"op": "F", "stage": 1, "microbatch": 0}, {"op": "B", "stage": 1, "microbatch": 0},
       {"op": "W", "stage": 1, "microbatch": 0, "weights_from": 0}]]})",
                                       "plans/other.json");

  EXPECT_EQ(read.schedule.name(), "other");
  EXPECT_EQ(read.schedule.workers(), 2);
  EXPECT_EQ(read.schedule.stages(), 2);
  EXPECT_FALSE(read.schedule.split_backward(0, 0));
  EXPECT_TRUE(read.schedule.split_backward(1, 0));
  EXPECT_EQ(read.schedule.placement(read.schedule.weight_gradient(1, 0)), (Placement{0, 1}));
  EXPECT_EQ(read.schedule.placement(read.schedule.forward(1, 0)), (Placement{1, 1}));
  EXPECT_EQ(simulate(read.schedule).makespan, 5);
}

TEST(ScheduleJson, KeepsTheDiscipline) {
  for (const Discipline discipline : {Discipline::greedy, Discipline::bounded}) {
    const bool bounded = discipline == Discipline::bounded;
    const Schedule schedule =
        named("1f1b", 3, 6).with(discipline, bounded ? std::vector{2, 2, 2} : std::vector<int>{});
    const auto json = schedule_json(schedule, {}, simulate(schedule));

    const ImportedSchedule read = schedule_from_json(json.dump(), "x.json");

    EXPECT_EQ(read.schedule.discipline(), discipline);
    EXPECT_EQ(schedule_json(read.schedule, read.costs, simulate(read.schedule, read.costs)), json);
  }
}

/// The passes of worker 0 in the order of a file's row.
std::string passes_of(const nlohmann::ordered_json& file) {
  const Schedule schedule = schedule_from_json(file.dump(), "x.json").schedule;
  std::string text;
  for (const JobId id : schedule.order(0)) text += to_string(schedule.job(id)) + " ";
  return text;
}

TEST(ScheduleJson, TheOrderOfTheListIsTheOrder) {
  const Schedule schedule = named("gpipe", 2, 3);
  auto file = schedule_json(schedule, {}, simulate(schedule));
  auto& row = file["ops"][0];
  EXPECT_EQ(passes_of(file), "F(0,0) F(0,1) F(0,2) BW(0,2) BW(0,1) BW(0,0) ");

  std::swap(row[3], row[4]);  // their times go with them
  EXPECT_EQ(passes_of(file), "F(0,0) F(0,1) F(0,2) BW(0,1) BW(0,2) BW(0,0) ");

  for (auto& op : row) {
    op.erase("start");
    op.erase("end");
  }
  EXPECT_EQ(passes_of(file), "F(0,0) F(0,1) F(0,2) BW(0,1) BW(0,2) BW(0,0) ");

  std::ranges::reverse(row);
  EXPECT_NE(message_of([&] { passes_of(file); }).find("cycle"), std::string::npos);
}

TEST(ScheduleJson, RefusesStartsThatContradictTheOrder) {
  const Schedule schedule = named("gpipe", 2, 3);
  const auto file = schedule_json(schedule, {}, simulate(schedule));
  const auto refusal = [&](const auto& edit) {
    auto edited = file;
    edit(edited["ops"][0]);
    return message_of([&] { passes_of(edited); });
  };
  const auto names = [](const std::string& message, const std::string& place) {
    return message.starts_with("x.json: ops[0]" + place + ": ");
  };
  // Row 0: F at 0, 1 and 2, BW at 6, 8 and 10. Each edit is of times alone.
  EXPECT_PRED2(names, refusal([](auto& row) { row[1]["start"] = 2.5; }), "[1].end");
  EXPECT_PRED2(names, refusal([](auto& row) { row[4]["start"] = 1; }), "[4].start");
  EXPECT_PRED2(names, refusal([](auto& row) {
                 row[4]["start"] = 6.5;
                 row[3]["start"] = 7;
               }),
               "[4].start");
  EXPECT_PRED2(names, refusal([](auto& row) {
                 for (auto& op : row) op.erase("end");
                 std::swap(row[3], row[4]);
               }),
               "[4].start");
  EXPECT_PRED2(names, refusal([](auto& row) { row[3]["start"] = 5.5; }), "[3].start");
  EXPECT_NE(refusal([](auto& row) { row[3]["start"] = 5.5; }).find("6, the end of ops[1][3]"),
            std::string::npos);
  EXPECT_EQ(refusal([](auto& row) { row[3]["start"] = 6 - 1e-12; }), "");
}

TEST(ScheduleJson, NamesTheCulpritInBadInput) {
  const std::string f = R"({"op":"F","stage":0,"microbatch":0})";
  const std::string bw = R"({"op":"BW","stage":0,"microbatch":0})";
  const std::string good = "[[" + f + "," + bw + "]]";
  const std::vector<testing::BadInput> inputs = {
      {"", {"unexpected end"}},
      {"{\"ops\": [[}", {"line 1"}},
      {"[1, 2]", {"object"}},
      {"{}", {"ops", "missing"}},
      {R"({"ops": 3})", {"ops", "array", "3"}},
      {R"({"ops": []})", {"no jobs"}},
      {R"({"ops": [{}]})", {"ops[0]", "array"}},
      {R"({"ops": [[7]]})", {"ops[0][0]", "object"}},
      {R"({"ops": [[{"op":"F","microbatch":0}]]})", {"ops[0][0].stage", "missing"}},
      {R"({"ops": [[{"op":"F","stage":"a","microbatch":0}]]})", {"ops[0][0].stage", "\"a\""}},
      {R"({"ops": [[{"op":"F","stage":-1,"microbatch":0}]]})",
       {"ops[0][0].stage: must be at least 0, got -1"}},
      {R"({"ops": [[{"op":"F","stage":0,"microbatch":1.5}]]})", {"ops[0][0].microbatch", "1.5"}},
      {R"({"ops": [[{"op":"F","stage":18446744073709551615,"microbatch":0}]]})",
       {"ops[0][0].stage: must be at most 2147483646, got 18446744073709551615"}},
      {R"({"ops": [[{"op":"F","stage":2147483646,"microbatch":2147483646}]]})", {"F(0,0)", "missing"}},
      {R"({"ops": [[{"op":"X","stage":0,"microbatch":0}]]})", {"ops[0][0].op", "\"X\""}},
      {R"({"ops": [[{"op":"F","stage":0,"microbatch":0,"start":"now"}]]})", {"ops[0][0].start"}},
      {"{\"ops\": [[" + f + "]]}", {"backward", "stage 0", "missing"}},
      {"{\"ops\": [[" + bw + "]]}", {"F(0,0)", "missing"}},
      {"{\"ops\": [[" + f + "," + bw + "],[" + f + "]]}", {"ops[1][0]", "F(0,0)", "twice", "ops[0][0]"}},
      {"{\"ops\": [[" + f + "," + bw + R"(,{"op":"W","stage":0,"microbatch":0}]]})",
       {"ops[0][", "BW(0,0)", "W(0,0)"}},
      {"{\"ops\": [[" + f + R"(,{"op":"B","stage":0,"microbatch":0}]]})", {"W(0,0)", "missing"}},
      {R"({"ops": [[{"op":"F","stage":0,"microbatch":0,"weights_from":4},)" + bw + "]]}",
       {"ops[0][0]", "worker 4"}},
      {R"({"workers": 2, "ops": )" + good + "}", {"workers", "2"}},
      {R"({"workers": 0, "ops": )" + good + "}", {"workers", "0"}},
      {R"({"stages": 2, "ops": )" + good + "}", {"F(1,0)", "2 stages"}},
      {R"({"microbatches": 1, "ops": [[)" + f + "," + bw + R"(,{"op":"F","stage":0,"microbatch":1}]]})",
       {"ops[0][2]", "F(0,1)", "1 micro-batches"}},
      {R"({"split_backward": true, "ops": )" + good + "}", {"split_backward"}},
      {R"({"schedule": 7, "ops": )" + good + "}", {"schedule", "string"}},
      {R"({"memory_limits": [1, 2], "ops": )" + good + "}", {"memory_limits", "2"}},
      {R"({"memory_limits": [0], "ops": )" + good + "}", {"memory_limits[0]", "0"}},
      {R"({"stage_graph": [[0]], "ops": )" + good + "}", {"stage_graph[0]"}},
      {R"({"stage_graph": [[0, 5]], "ops": )" + good + "}", {"stage_graph", "5"}},
      {R"({"durations": {"F": 1, "B": 1}, "ops": )" + good + "}", {"durations.W", "missing"}},
      {R"({"durations": {"F": -1, "B": 1, "W": 1}, "ops": )" + good + "}", {"durations.F", "-1"}},
      {R"({"durations": [{}, {}], "ops": )" + good + "}", {"durations", "2 entries", "1 stages"}},
      {R"({"comm": "fast", "ops": )" + good + "}", {"comm", "fast"}},
      {R"({"comm": 1e999, "ops": )" + good + "}", {"1e999"}},
      {R"({"shared_weights": [{"stages": [1], "weights": 1, "master": 0}], "ops": )" + good + "}",
       {"shared_weights[0].stages[0]", "1 stages"}},
      {R"({"shared_weights": [{"stages": [0, 0], "weights": 1, "master": 0}], "ops": )" + good + "}",
       {"shared_weights[0].stages[1]", "ascend"}},
      {R"({"shared_weights": [{"stages": [], "weights": 1, "master": 0}], "ops": )" + good + "}",
       {"shared_weights[0].stages", "needs a stage"}},
      {R"({"shared_weights": [{"stages": [0], "master": 0}], "ops": )" + good + "}", {"weights", "missing"}},
      {R"({"sizes": {"weights": 1}, "stages_without_weights": [0], "ops": )" + good + "}",
       {"stages_without_weights", "stage 0 has weights"}},
      {R"({"disciplin": "greedy", "ops": )" + good + "}", {"disciplin: unknown key", "discipline"}},
      {R"({"discipline": "lazy", "ops": )" + good + "}", {"discipline", "greedy, bounded, ordered", "lazy"}},
      {R"({"discipline": 3, "ops": )" + good + "}", {"discipline", "3"}},
      {R"({"comm": 1, "comm": 2, "ops": )" + good + "}", {"'comm'", "twice"}},
      {R"({"ops": [[{"op":"F","stage":0,"stage":1,"microbatch":0},)" + bw + "]]}", {"'stage'", "twice"}},
      {R"({"ops": [[{"op":"F","stage":0,"microbatch":0,"weight_from":0},)" + bw + "]]}",
       {"ops[0][0].weight_from: unknown key", "weights_from"}},
      {R"({"ops": [[{"op":"F","stage":0,"microbatch":0,"end":"now"},)" + bw + "]]}",
       {"ops[0][0].end", "now"}},
      {R"({"durations": {"F": 1, "B": 1, "W": 1, "BW": 2}, "ops": )" + good + "}",
       {"durations.BW: unknown key", "F, B, W"}},
      {R"({"sizes": {"stashes": 1}, "ops": )" + good + "}", {"sizes.stashes: unknown key", "stash"}},
      {R"({"unit": "ms", "ops": )" + good + "}", {"unit", "\"s\"", "ms"}},
      {R"({"makespan": "long", "ops": )" + good + "}", {"makespan", "a number", "long"}},
      {R"({"peak_stashes": 1, "ops": )" + good + "}", {"peak_stashes", "an array"}},
      {R"({"received": [], "ops": )" + good + "}", {"received", "an object"}},
      {R"({"recompute": "yes", "ops": )" + good + "}", {"recompute", "true or false", "yes"}},
      {R"({"recompute": true, "ops": )" + good + "}",
       {"recompute", "an earlier version", "a pass R before B"}},
  };
  testing::expect_refused(inputs, "dir/bad.json",
                          [](const std::string& text) { schedule_from_json(text, "dir/bad.json"); });
}

TEST(ScheduleJson, KeepsRecomputation) {
  ScheduleRequest request;
  request.workers = 3;
  request.microbatches = 4;
  request.homes = {Home::none, Home::worker, Home::none};
  const Costs costs;
  const Schedule schedule = make_schedule("1f1b", request);
  const auto json = schedule_json(schedule, costs, simulate(schedule, costs));
  const ImportedSchedule back = schedule_from_json(json_text(json), "x.json");
  for (int s = 0; s < 3; ++s) EXPECT_EQ(back.schedule.home(s, 1), request.homes[index(s)]);
  EXPECT_EQ(simulate(back.schedule, back.costs).peak_stashes, simulate(schedule, costs).peak_stashes);
}

TEST(ScheduleJson, KeepsCopies) {
  testing::Random random(5);
  int copied = 0;
  for (int round = 0; round < rounds(300); ++round) {
    const Schedule schedule = testing::sound_schedule(random, Discipline::ordered);
    const Costs costs = testing::random_costs(random, schedule.stages());
    SCOPED_TRACE(round);
    const Timeline timeline = simulate(schedule, costs);
    const auto json = schedule_json(schedule, costs, timeline);
    ASSERT_EQ(json.contains("copies"), schedule.copies());
    const ImportedSchedule back = schedule_from_json(json_text(json), "x.json");
    ASSERT_EQ(back.schedule.copies(), schedule.copies());
    const Timeline again = simulate(back.schedule, back.costs);
    for (const JobId id : schedule.order()) {
      const JobId other = *back.schedule.find(schedule.job(id));
      ASSERT_EQ(again.spans[other].start, timeline.spans[id].start) << to_string(schedule.job(id));
      ASSERT_EQ(again.spans[other].end, timeline.spans[id].end);
    }
    ASSERT_EQ(again.peak_stashes, timeline.peak_stashes);
    copied += schedule.copies() ? 1 : 0;
  }
  EXPECT_GE(copied, rounds(10));
}

/// Changes one copy of a file, which is then refused.
TEST(ScheduleJson, RefusesWrongCopies) {
  const Schedule schedule = make_schedule("1f1b", {.workers = 2, .microbatches = 3}).with_homes([](int, int) {
    return Home::host;
  });
  const Costs costs{.host = HomeLink{}};
  const auto json = schedule_json(schedule, costs, simulate(schedule, costs));
  ASSERT_EQ(json["copies"][0].size(), 6U);
  const auto refuse = [&](const std::function<void(nlohmann::ordered_json&)>& change,
                          const std::string& text) {
    nlohmann::ordered_json changed = json;
    change(changed);
    EXPECT_THAT([&] { schedule_from_json(json_text(changed), "x.json"); },
                ThrowsMessage<InputError>(HasSubstr(text)));
  };
  using Json = nlohmann::ordered_json;
  refuse([](Json& j) { j["copies"][0][0]["home"] = "worker"; }, "expected host, disk or worker:N");
  refuse([](Json& j) { j["copies"][0][0]["home"] = "disk"; }, "its home is another than that of");
  refuse([](Json& j) { j["copies"][0][0]["op"] = "F"; }, "expected O or L");
  refuse([](Json& j) { j["copies"][0].erase(5); }, "is missing");
  refuse([](Json& j) { j["copies"][0][0]["position"] = 9; }, "position 9 is behind the 6 jobs of the worker");
  refuse([](Json& j) { j["copies"][0][0]["position"] = 5; }, "is before that of the copy before");
  refuse([](Json& j) { j["copies"][0][0]["stage"] = 7; }, "is missing");
  refuse([](Json& j) { j["copies"].erase(1); }, "1 entries, but \"ops\" has 2 rows");
  refuse([](Json& j) { std::swap(j["copies"][0], j["copies"][1]); }, "is of worker");
  refuse([](Json& j) { j["ops"][0][0]["op"] = "O"; }, "belongs in \"copies\"");
  refuse([](Json& j) { j["copies"][0].push_back(j["copies"][0][5]); }, "is listed twice");
}

}  // namespace
}  // namespace starpipe::plan
