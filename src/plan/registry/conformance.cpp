// SPDX-License-Identifier: Apache-2.0
#include "plan/registry/conformance.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using Outcome = Finding::Outcome;

// Thrown to end a step that failed.
struct Failure {
  std::string message;
};

std::string describe(const ScheduleRequest& request) {
  std::string text = fmt::format("W={} B={}", request.workers, request.microbatches);
  if (request.graph)
    text += fmt::format(" S={}{}", request.graph->size(), request.graph->is_chain() ? "" : " (a tree)");
  if (request.groups) text += fmt::format(" G={}", *request.groups);
  if (!request.stage_workers.empty())
    text += fmt::format(" placement={}", fmt::join(request.stage_workers, ","));
  for (const auto& [name, value] : request.options) text += fmt::format(" {}={}", name, value);
  return text;
}

template <class... Args>
[[noreturn]] void fail(const ScheduleRequest& request, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format("{}: {}", describe(request), fmt::format(format, std::forward<Args>(args)...))};
}

using GraphChoice = std::vector<std::optional<StageGraph>> (*)(int workers);

std::vector<std::optional<StageGraph>> chains(int workers) {
  std::vector<std::optional<StageGraph>> graphs = {std::nullopt};
  for (const int stages : std::set{1, 3, workers, 2 * workers})
    graphs.emplace_back(StageGraph::chain(stages));
  return graphs;
}

// Returns trees of two branches that join, with three stages, with as many as there are workers, and
// twice as many.
std::vector<std::optional<StageGraph>> trees(int workers) {
  std::vector<std::optional<StageGraph>> graphs;
  for (const int stages : std::set{3, workers, 2 * workers}) {
    if (stages < 3) continue;
    std::vector<std::pair<int, int>> edges;
    const int branch = (stages - 1) / 2;
    for (int s = 0; s + 1 < stages; ++s) edges.emplace_back(s, s + 1 == branch ? stages - 1 : s + 1);
    graphs.emplace_back(StageGraph(stages, edges));
  }
  return graphs;
}

std::vector<ScheduleRequest> requests(GraphChoice graphs) {
  std::vector<ScheduleRequest> all;
  for (const int workers : {1, 2, 3, 4, 8}) {
    for (const int microbatches : {1, 2, 3, 8, 16}) {
      for (const auto& graph : graphs(workers)) {
        const ScheduleRequest plain{.workers = workers, .microbatches = microbatches, .graph = graph};
        all.push_back(plain);
        for (const int groups : std::set{1, 2, workers}) {
          all.push_back(plain);
          all.back().groups = groups;
        }
        all.push_back(plain);
        const int stages = graph ? graph->size() : workers;
        for (int s = 0; s < stages; ++s) all.back().stage_workers.push_back(workers - 1 - s % workers);
      }
    }
  }
  return all;
}

Timeline simulated(const Schedule& schedule, const ScheduleRequest& request, const Costs& costs) {
  try {
    return simulate(schedule, costs);
  } catch (const InputError& error) {
    fail(request, "{}", error.what());
  }
}

// Returns the answer to one request: a sound schedule, or nothing, with the reason in `refusal`.
std::optional<Schedule> ask(std::string_view name, const ScheduleRequest& request, std::string& refusal) {
  try {
    Schedule schedule = make_schedule(name, request);
    if (make_schedule(name, request) != schedule) {
      fail(request, "asked twice, it gives two different schedules, so ranks would disagree");
    }
    if (const CheckResult result = check(schedule); !result.ok()) {
      fail(request, "it cannot run: {}", result.problem);
    }
    return schedule;
  } catch (const BrokenSchedule& error) {
    fail(request, "{}", error.what());
  } catch (const InputError& error) {
    refusal = error.what();
    if (refusal.empty()) fail(request, "refused without a reason");
    return std::nullopt;
  }
}

// Refusals whose messages differ only in their numbers.
struct Refusals {
  int count = 0;
  std::string first;  // request and message
};

struct Answers {
  int answered = 0;
  int refused = 0;
  std::map<std::string, Refusals> refusals = {};  // by message without its numbers

  void refuse(const ScheduleRequest& request, const std::string& message) {
    ++refused;
    std::string kind;
    for (const char c : message) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit) kind += c;
      if (digit && !kind.ends_with('#')) kind += '#';
    }
    Refusals& alike = refusals[kind];
    if (++alike.count == 1) alike.first = fmt::format("{}: {}", describe(request), message);
  }
  // Returns the reasons with their counts: "12 like "W=3 B=1: needs an even number of workers, not 3"", the
  // largest group first.
  [[nodiscard]] std::string reasons() const {
    constexpr std::size_t max = 3;
    std::vector<Refusals> groups;
    for (const auto& [kind, alike] : refusals) groups.push_back(alike);
    std::ranges::stable_sort(groups, std::greater<>{}, &Refusals::count);
    std::vector<std::string> texts;
    for (const auto& [count, first] : groups) {
      if (texts.size() == max) break;
      texts.push_back(fmt::format("{} like \"{}\"", count, first));
    }
    if (groups.size() > max) texts.push_back(fmt::format("and {} other kinds", groups.size() - max));
    return fmt::format("{}", fmt::join(texts, ", "));
  }
};

Answers ask_all(std::string_view name, GraphChoice graphs,
                const std::function<void(const ScheduleRequest&, const Schedule&)>& look) {
  Answers count;
  for (const ScheduleRequest& request : requests(graphs)) {
    std::string refusal;
    if (const auto schedule = ask(name, request, refusal)) {
      ++count.answered;
      look(request, *schedule);
    } else {
      count.refuse(request, refusal);
    }
  }
  return count;
}

void simulate_unit(const ScheduleRequest& request, const Schedule& schedule) {
  simulated(schedule, request, {});
  simulated(schedule, request, {.links = Link{.alpha = 0.5}, .prefetch = false});
}

std::string counts_text(const Answers& count) {
  const std::string text = fmt::format("{} requests answered, {} refused", count.answered, count.refused);
  return count.refused == 0 ? text : text + ": " + count.reasons();
}

// Asks as a user does first. Asks for two groups if the schedule must have groups.
std::optional<Schedule> ask_first(std::string_view name, ScheduleRequest& request, std::string& refusal) {
  auto schedule = ask(name, request, refusal);
  if (!schedule && refusal.starts_with("groups: ")) {
    request.groups = 2;
    schedule = ask(name, request, refusal);
  }
  return schedule;
}

ScheduleRequest first_request() { return {.workers = 4, .microbatches = 8}; }

Finding default_request(std::string_view name) {
  ScheduleRequest request = first_request();
  std::string refusal;
  const auto schedule = ask_first(name, request, refusal);
  if (!schedule) return {Outcome::failed, fmt::format("{} is refused: {}", describe(request), refusal)};
  simulate_unit(request, *schedule);
  return {Outcome::passed, fmt::format("{}: {} stages, {}", describe(request), schedule->stages(),
                                       to_string(schedule->discipline()))};
}

Finding options(std::string_view name) {
  const std::vector<ScheduleOption>& declared = find_schedule(name).options;
  if (declared.empty()) return {Outcome::does_not_apply, "it has no options"};
  Answers count;
  for (const ScheduleOption& option : declared) {
    const int next = option.default_value < option.max ? option.default_value + 1 : option.max;
    for (const int value : std::set{option.min, option.default_value, next}) {
      ScheduleRequest request = first_request();
      request.options[option.name] = value;
      std::string refusal;
      if (const auto schedule = ask_first(name, request, refusal)) {
        ++count.answered;
        simulate_unit(request, *schedule);
      } else {
        count.refuse(request, refusal);
      }
    }
  }
  if (count.answered == 0) return {Outcome::failed, "no value of an option is answered: " + count.reasons()};
  return {Outcome::passed, counts_text(count)};
}

Finding chain(std::string_view name) {
  bool parallel = false;
  const Answers count = ask_all(name, chains, [&](const ScheduleRequest& request, const Schedule& schedule) {
    simulate_unit(request, schedule);
    parallel = parallel || request.workers > 1;
  });
  if (count.answered == 0) return {Outcome::failed, "no request at all is answered: " + count.reasons()};
  if (!parallel)
    return {Outcome::failed, "no request for more than one worker is answered: " + count.reasons()};
  return {Outcome::passed, counts_text(count)};
}

Finding graph(std::string_view name) {
  const Answers count = ask_all(name, trees, simulate_unit);
  if (count.answered == 0) return {Outcome::does_not_apply, "refuses trees: " + count.reasons()};
  return {Outcome::passed, counts_text(count)};
}

Finding split_backward(std::string_view name) {
  int split = 0;
  ask_all(name, chains, [&](const ScheduleRequest& request, const Schedule& schedule) {
    if (!schedule.split_backward()) return;
    ++split;
    for (const Durations& d : {Durations{1, 2, 0}, Durations{1, 0.5, 3}}) {
      const Timeline timeline = simulated(schedule, request, {.durations = {d}, .links = Link{.alpha = 0.5}});
      for (const JobId id : schedule.order()) {
        const Job job = schedule.job(id);
        if (job.pass != Pass::W) continue;
        if (timeline.spans[id].start >= timeline.spans[schedule.backward(job.stage, job.microbatch)].end)
          continue;
        fail(request, "{} starts before its B has ended", to_string(job));
      }
    }
  });
  if (split == 0) return {Outcome::does_not_apply, "B and W are fused everywhere"};
  return {Outcome::passed,
          fmt::format("{} answers split the backward pass; they are simulated with unequal passes", split)};
}

// Returns the smallest limit, the same for all workers, under which `check` lets the schedule run bounded.
std::optional<int> min_limit(const Schedule& schedule, std::string& problem) {
  for (int limit = 1; limit <= schedule.stages() * schedule.microbatches(); ++limit) {
    const std::vector<int> limits(index(schedule.workers()), limit);
    problem = check(schedule.with(Discipline::bounded, limits)).problem;
    if (problem.empty()) return limit;
  }
  return std::nullopt;
}

void require_within(const Schedule& schedule, const ScheduleRequest& request) {
  const Timeline timeline = simulated(schedule, request, {.links = Link{.alpha = 0.5}});
  for (std::size_t w = 0; w < schedule.memory_limits().size(); ++w) {
    if (timeline.peak_stashes[w] <= schedule.memory_limits()[w]) continue;
    fail(request, "worker {} holds {} stashes, its limit is {}", w, timeline.peak_stashes[w],
         schedule.memory_limits()[w]);
  }
}

// Asks for the schedule within a limit, as a user does with schedule.memory_limit. Greedy keeps no limit: the
// user then asks for schedule.discipline bounded as well.
void require_limited(std::string_view name, const ScheduleRequest& request, int limit) {
  OrderRequest order{.memory_limits = {limit}};
  if (make_schedule(name, request).discipline() == Discipline::greedy) order.discipline = Discipline::bounded;
  const LimitedSchedule made = make_limited_schedule(name, request, order, {.links = Link{.alpha = 0.5}});
  const auto limits = made.schedule.memory_limits();
  if (limits.empty() || std::ranges::max(limits) > limit) {
    fail(request, "with a memory limit of {}, the schedule has no limit or a larger one", limit);
  }
  require_within(made.schedule, request);
}

Finding memory_limit(std::string_view name) {
  int bounded = 0;
  std::string why_not;
  std::string example;
  ask_all(name, chains, [&](const ScheduleRequest& request, const Schedule& schedule) {
    require_within(schedule, request);  // limits of its own
    std::string problem;
    const auto limit = min_limit(schedule, problem);
    if (!limit) {
      why_not = fmt::format("{}: {}", describe(request), problem);
      return;
    }
    ++bounded;
    const std::vector<int> limits(index(schedule.workers()), *limit);
    require_within(schedule.with(Discipline::bounded, limits), request);
    require_limited(name, request, *limit);
    example = fmt::format("{}: {} per worker", describe(request), *limit);
  });
  if (bounded == 0) return {Outcome::does_not_apply, "no answer can be bounded: " + why_not};
  return {Outcome::passed, fmt::format("{} answers keep the smallest limit there is; {}", bounded, example)};
}

// Runs the reduction of a large gradient on sets: who has contributed to the sum that each worker has, for
// each part of the gradient that no step divides.
void require_reduced(const Schedule& schedule, const ScheduleRequest& request, int stage) {
  constexpr std::uint64_t bytes = std::uint64_t{1} << 40;
  const std::vector<int> contributors = gradient_workers(schedule, stage);
  const std::multiset<int> whole(contributors.begin(), contributors.end());
  const std::vector<ReductionStep> steps = reduction_plan(schedule, stage, bytes);
  std::set<std::uint64_t> parts = {0};
  for (const ReductionStep& step : steps) parts.insert({step.first, step.first + step.bytes});
  parts.erase(bytes);
  for (const std::uint64_t part : parts) {
    std::map<int, std::multiset<int>> sums;
    for (const int worker : contributors) sums[worker] = {worker};
    for (const ReductionStep& step : steps) {
      if (part < step.first || part >= step.first + step.bytes) continue;
      const std::multiset<int> moved = sums[step.from];
      if (step.finished) sums[step.into].clear();
      sums[step.into].insert(moved.begin(), moved.end());
    }
    for (const int holder : weight_holders(schedule, stage)) {
      if (sums[holder] == whole) continue;
      fail(request,
           "the gradient of stage {} does not reach worker {}, which holds its weights, "
           "once from each of the workers {}",
           stage, holder, fmt::join(contributors, ", "));
    }
  }
}

Finding replicas(std::string_view name) {
  int replicated = 0;
  std::size_t max = 1;
  ask_all(name, chains, [&](const ScheduleRequest& request, const Schedule& schedule) {
    std::size_t holders = 1;
    for (int s = 0; s < schedule.stages(); ++s) {
      require_reduced(schedule, request, s);
      holders = std::max(holders, weight_holders(schedule, s).size());
    }
    if (holders > 1) ++replicated;
    max = std::max(max, holders);
  });
  if (replicated == 0)
    return {Outcome::does_not_apply, "one worker holds the weights of each stage, in all answers"};
  return {Outcome::passed,
          fmt::format("up to {} holders of a stage's weights, in {} answers; gradients reach each", max,
                      replicated)};
}

// Runs a step. A Failure that it throws becomes its finding.
template <Finding (*step)(std::string_view)>
Finding guarded(std::string_view name) {
  try {
    return step(name);
  } catch (const Failure& failure) {
    return {Outcome::failed, failure.message};
  } catch (const InputError& error) {
    return {Outcome::failed, error.what()};
  }
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::passed:
      return "passed";
    case Outcome::failed:
      return "FAILED";
    case Outcome::does_not_apply:
      return "-";
  }
  return "?";
}

std::span<const ConformanceStep> conformance_steps() {
  static constexpr std::array steps = {ConformanceStep{"default", guarded<default_request>},
                                       ConformanceStep{"options", guarded<options>},
                                       ConformanceStep{"chain", guarded<chain>},
                                       ConformanceStep{"graph", guarded<graph>},
                                       ConformanceStep{"split backward", guarded<split_backward>},
                                       ConformanceStep{"memory limit", guarded<memory_limit>},
                                       ConformanceStep{"replicas", guarded<replicas>}};
  return steps;
}

}  // namespace starpipe::plan
