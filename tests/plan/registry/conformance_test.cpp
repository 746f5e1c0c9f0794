// SPDX-License-Identifier: Apache-2.0
// The findings of the conformance steps for known schedules, sound and broken. tests/plugins has the tests
// with plug-ins.
#include "plan/registry/conformance.hpp"

#include <map>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;
using Outcome = Finding::Outcome;

std::map<std::string_view, Finding> all_steps(std::string_view name) {
  std::map<std::string_view, Finding> findings;
  for (const ConformanceStep& step : conformance_steps()) findings[step.name] = step.run(name);
  return findings;
}

// The function of a plug-in may do anything.
TEST(Conformance, AnEntryThatDoesNotKeepItsContract) {
  const auto given = [](const char* name, auto build) { register_schedule({name, "odd", "tests", build}); };
  const auto one_stage = [](int workers, int microbatches) {
    return Schedule({.name = "one",
                     .microbatches = microbatches,
                     .workers = workers,
                     .placement =
                         [](const Job&) {
                           return Placement{0, 0};
                         },
                     .priority = [](const Job& job) { return job.microbatch; }});
  };
  given("odd-int", [](const ScheduleRequest&) -> Schedule { throw 1; });
  given("odd-exception", [](const ScheduleRequest&) -> Schedule { throw std::out_of_range("index 7"); });
  given("odd-refusal", [](const ScheduleRequest&) -> Schedule { throw InputError("no"); });
  given("odd-workers",
        [one_stage](const ScheduleRequest& r) { return one_stage(r.workers + 1, r.microbatches); });
  given("odd-microbatches",
        [one_stage](const ScheduleRequest& r) { return one_stage(r.workers, r.microbatches + 1); });
  given("odd-graph", [one_stage](const ScheduleRequest& r) { return one_stage(r.workers, r.microbatches); });
  const ScheduleRequest request{.workers = 2, .microbatches = 3, .graph = StageGraph::chain(2)};
  for (const char* name : {"odd-int", "odd-exception", "odd-workers", "odd-microbatches", "odd-graph"}) {
    EXPECT_THROW(make_schedule(name, request), BrokenSchedule) << name;
  }
  try {
    make_schedule("odd-refusal", request);
    FAIL();
  } catch (const BrokenSchedule&) {
    FAIL() << "a refusal is not a breach";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "no");
  }
  EXPECT_THROW(make_schedule("odd-graph", {.workers = 2, .microbatches = 3}), BrokenSchedule)
      << "a chain of two";
  EXPECT_THROW(make_schedule("1f1b", {.workers = 0, .microbatches = 3}), InputError);
  EXPECT_THROW(make_schedule("1f1b", {.workers = 2, .microbatches = 0}), InputError);
}

/// Refusals that differ in their numbers are one kind.
TEST(Conformance, GroupsRefusalsByTheirReason) {
  register_schedule({"odd-even", "odd", "tests", [](const ScheduleRequest& request) {
                       if (request.groups) throw InputError("no groups");
                       if (request.workers % 2 != 0)
                         throw InputError("needs an even number of workers, not " +
                                          std::to_string(request.workers));
                       return make_schedule("1f1b", request);
                     }});
  const auto findings = all_steps("odd-even");
  EXPECT_EQ(findings.at("default").message, "W=4 B=8: 4 stages, ordered");
  const std::string& chains = findings.at("chain").message;
  EXPECT_THAT(chains, HasSubstr("like \"W=1 B=1: needs an even number of workers, not 1\""));
  EXPECT_THAT(chains, ::testing::Not(HasSubstr("not 3")));
  EXPECT_THAT(chains, HasSubstr(": no groups\""));
}

TEST(Conformance, SchedulesOfOurs) {
  for (const ScheduleEntry& entry : schedule_entries()) {
    if (entry.source == "tests") continue;
    for (const auto& [step, finding] : all_steps(entry.name)) {
      EXPECT_NE(finding.outcome, Outcome::failed) << entry.name << ", " << step << ": " << finding.message;
    }
  }
}

TEST(Conformance, WhatApplies) {
  const auto pipeline = all_steps("1f1b");
  EXPECT_EQ(pipeline.at("chain").outcome, Outcome::passed);
  EXPECT_EQ(pipeline.at("graph").outcome, Outcome::passed);
  EXPECT_EQ(pipeline.at("split backward").outcome, Outcome::does_not_apply);
  EXPECT_EQ(pipeline.at("memory limit").outcome, Outcome::passed);
  EXPECT_EQ(pipeline.at("replicas").outcome, Outcome::passed);
  EXPECT_EQ(all_steps("zb-h1").at("replicas").outcome, Outcome::does_not_apply);
  EXPECT_EQ(all_steps("ddp").at("replicas").outcome, Outcome::passed);
  EXPECT_EQ(all_steps("lpp").at("replicas").outcome, Outcome::passed);
}

// One stage per worker, B before W, with `change` made to it.
template <class Change>
std::map<std::string_view, Finding> findings_of(const std::string& name, Change change) {
  register_schedule({name, "odd", "tests", [name, change](const ScheduleRequest& request) {
                       const int workers = request.workers;
                       const int microbatches = request.microbatches;
                       ScheduleSpec spec{.name = name,
                                         .graph = *request.graph,
                                         .microbatches = microbatches,
                                         .workers = workers,
                                         .split_backward = [](int, int) { return true; },
                                         .placement =
                                             [workers](const Job& job) {
                                               return Placement{job.stage % workers, job.stage % workers};
                                             },
                                         .priority = [](const Job& job) { return job.microbatch; },
                                         .discipline = Discipline::greedy};
                       change(spec);
                       return Schedule(spec);
                     }});
  return all_steps(name);
}

TEST(Conformance, SplitBackward) {
  const auto findings = findings_of("split", [](ScheduleSpec&) {});
  EXPECT_EQ(findings.at("split backward").outcome, Outcome::passed) << findings.at("split backward").message;
  EXPECT_EQ(findings.at("chain").outcome, Outcome::passed) << findings.at("chain").message;
}

TEST(Conformance, AWorkerOfItsOwnForBackwardPasses) {
  const auto findings = findings_of("elsewhere", [](ScheduleSpec& spec) {
    spec.placement = [workers = spec.workers](const Job& job) {
      return Placement{0, job.pass == Pass::F ? 0 : workers - 1};
    };
  });
  EXPECT_EQ(findings.at("chain").outcome, Outcome::passed) << findings.at("chain").message;
  // With one worker the schedule is bounded like any other.
  EXPECT_EQ(findings.at("memory limit").outcome, Outcome::passed) << findings.at("memory limit").message;
}

TEST(Conformance, ALimitThatItsOwnOrderBreaks) {
  const auto findings = findings_of("too-tight", [](ScheduleSpec& spec) {
    spec.discipline = Discipline::ordered;
    spec.priority = [](const Job& job) { return job.pass == Pass::F ? job.stage - 1000 : 1000 - job.stage; };
    spec.memory_limits.assign(index(spec.workers), 2);
  });
  EXPECT_EQ(findings.at("chain").outcome, Outcome::failed);
  EXPECT_THAT(findings.at("chain").message, HasSubstr("memory limit of 2"));
}

TEST(Conformance, OnlyTreesGoWrong) {
  const auto findings = findings_of("no-trees", [](ScheduleSpec& spec) {
    if (!spec.graph.is_chain()) throw std::logic_error("a tree");
  });
  EXPECT_EQ(findings.at("chain").outcome, Outcome::passed);
  EXPECT_EQ(findings.at("graph").outcome, Outcome::failed);
  EXPECT_THAT(findings.at("graph").message, HasSubstr("a tree"));
}

TEST(Conformance, OneWorkerOnly) {
  const auto findings = findings_of("alone", [](ScheduleSpec& spec) {
    if (spec.workers > 1) throw InputError("alone runs on one worker");
  });
  EXPECT_EQ(findings.at("chain").outcome, Outcome::failed);
  EXPECT_THAT(findings.at("chain").message, HasSubstr("alone runs on one worker"));
}

TEST(Conformance, AnUnknownName) { EXPECT_EQ(all_steps("2f2b").at("chain").outcome, Outcome::failed); }

}  // namespace
}  // namespace starpipe::plan
