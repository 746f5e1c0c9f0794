// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A file says n of all jobs and copies then, since n compares jobs of two workers.
TEST(ScheduleJson, HasNWhereStashesWaitOnOtherWorkers) {
  const Schedule schedule =
      make_schedule("1f1b", {.workers = 2, .microbatches = 2}).with_homes([](int s, int) {
        return s == 0 ? Home::at(1) : Home::worker;
      });
  const Costs costs;
  const auto json = schedule_json(schedule, costs, simulate(schedule, costs));
  EXPECT_EQ(json["copies"][0][0]["home"], "worker:1");
  EXPECT_TRUE(schedule_from_json(json_text(json), "x.json").schedule == schedule);
  const auto refuse = [&](auto change, const std::string& text) {
    nlohmann::ordered_json changed = json;
    change(changed);
    EXPECT_THAT([&] { schedule_from_json(json_text(changed), "x.json"); },
                ThrowsMessage<InputError>(HasSubstr(text)));
  };
  using Json = nlohmann::ordered_json;
  refuse([](Json& j) { j["ops"][1][0].erase("n"); },
         "ops[1][0]: F(1,0) needs \"n\", since stashes wait on other workers");
  refuse([](Json& j) { j["copies"][0][1].erase("n"); }, "copies[0][1]: L(0,0) needs \"n\"");
  refuse([](Json& j) { j["ops"][0][1]["n"] = 0; }, "ops[0][1]: n is not larger than that of the job before");
  refuse([](Json& j) { j["copies"][0][0]["home"] = "worker:x"; }, "expected host, disk or worker:N");
}

}  // namespace
}  // namespace starpipe::plan
