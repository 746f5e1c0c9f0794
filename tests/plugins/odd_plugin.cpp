// SPDX-License-Identifier: Apache-2.0
// A plug-in that misbehaves. Each schedule does one thing that a schedule must not do; STARPIPE_ODD names a
// thing that the plug-in does when it hands the schedules over.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "starpipe/plan/registry/plugin.hpp"

using starpipe::plan::Job;
using starpipe::plan::Placement;
using starpipe::plan::Schedule;
using starpipe::plan::ScheduleEntry;
using starpipe::plan::ScheduleRequest;
using starpipe::plan::ScheduleSpec;
using starpipe::plan::StageGraph;

namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Runs whenever the file is loaded.
const bool witness = [] {
  if (const std::string file = environment("STARPIPE_ODD_WITNESS"); !file.empty())
    std::ofstream(file) << "ran";
  return true;
}();

// A registration that fails before anything of the plug-in is called.
const bool registered = environment("STARPIPE_ODD") != "registers twice" ||
                        starpipe::plan::register_schedule({"1f1b", "", "", {}});

// A valid schedule: stage s on worker s mod W, forward passes first.
ScheduleSpec sound(const ScheduleRequest& request) {
  const int workers = request.workers;
  return {.name = "odd",
          .graph = *request.graph,
          .microbatches = request.microbatches,
          .workers = workers,
          .placement =
              [workers](const Job& job) {
                return Placement{job.stage % workers, job.stage % workers};
              },
          .priority = [](const Job& job) { return job.microbatch; },
          .discipline = starpipe::plan::Discipline::greedy};
}

template <class Change>
ScheduleEntry entry(const char* name, Change change) {
  return {name, "odd", "tests", [change](const ScheduleRequest& request) {
            ScheduleSpec spec = sound(request);
            change(spec);
            return Schedule(spec);
          }};
}

// Calls itself until the stack is full.
int fill_stack(volatile int* depth) {
  if (*depth < 0) return 0;
  volatile int more = *depth + 1;
  return fill_stack(&more) + more;
}

// The same, and every call allocates memory: the stack ends inside of malloc.
void* allocate_until_full(volatile int* depth) {
  if (*depth < 0) return nullptr;
  volatile int more = *depth + 1;
  void* const memory = std::malloc(static_cast<std::size_t>(more % 1000));
  std::free(allocate_until_full(&more));
  return memory;
}

int next() {
  static int count = 0;
  return ++count;
}

}  // namespace

STARPIPE_PLUGIN(schedules) {
  const std::string odd = environment("STARPIPE_ODD");
  if (odd == "throw") throw 1;
  if (odd == "throw exception") throw std::runtime_error("two\nlines");
  if (odd == "crash") std::raise(SIGSEGV);
  if (odd == "nothing") return;
  if (odd == "fill stack at exit") {  // when no function of the plug-in is being called
    std::atexit([] {
      volatile int depth = 0;
      std::free(allocate_until_full(&depth));
    });
  }
  schedules.push_back(entry("sound", [](ScheduleSpec&) {}));
  if (odd == "sound") return;
  if (odd == "never a start") {
    schedules.push_back(entry("throws-int", [](ScheduleSpec&) { throw 1; }));
    schedules.push_back(entry("elsewhere", [](ScheduleSpec& s) {
      s.placement = [](const Job&) { return Placement{0, 0}; };
    }));
    return;
  }
  schedules.push_back(entry("wave", [](ScheduleSpec& s) {  // forward passes first, up to 8 of them
    s.priority = [](const Job& job) { return static_cast<int>(job.pass) * 1000 + job.microbatch; };
    s.discipline = starpipe::plan::Discipline::bounded;
    s.memory_limits.assign(static_cast<std::size_t>(s.workers), 8);
  }));
  ScheduleEntry counted = entry("counted", [](ScheduleSpec&) {});
  counted.options = {
      {.name = "copies", .meaning = "stages of a worker", .default_value = 2, .min = 1, .max = 4}};
  counted.stages_with = [odd](const starpipe::plan::ScheduleOptions& options) {
    if (odd == "stages crash") std::raise(SIGSEGV);
    if (odd == "stages exit") std::exit(0);
    if (odd == "stages become true") execl("/bin/true", "true", nullptr);
    if (odd == "stages throw") throw 3;
    if (odd == "stages exception") throw std::runtime_error("two\nlines");
    return options.at("copies");
  };
  if (odd == "option twice") counted.options.push_back(counted.options.front());
  if (odd == "option out of range") counted.options.front().default_value = 5;
  schedules.push_back(counted);
  if (odd == "taken") schedules.push_back(entry("1f1b", [](ScheduleSpec&) {}));
  if (odd == "twice") schedules.push_back(entry("sound", [](ScheduleSpec&) {}));
  if (odd == "blank name") schedules.push_back(entry("two words", [](ScheduleSpec&) {}));
  if (odd == "no name") schedules.push_back(entry("", [](ScheduleSpec&) {}));
  if (odd == "no stages") schedules.back().stages_per_worker = 0;
  if (odd == "no function") schedules.push_back({"no-function", "", "", {}});
  schedules.push_back(entry("throws-int", [](ScheduleSpec&) { throw 1; }));
  schedules.push_back(
      entry("throws-out-of-range", [](ScheduleSpec& s) { s.workers = std::vector<int>{}.at(3); }));
  schedules.push_back(entry("no-memory", [](ScheduleSpec&) { throw std::bad_alloc(); }));
  schedules.push_back(
      entry("n-throws", [](ScheduleSpec& s) { s.priority = [](const Job&) -> int { throw 'n'; }; }));
  schedules.push_back(entry("no-n", [](ScheduleSpec& s) { s.priority = {}; }));
  schedules.push_back(entry("refuses-all", [](ScheduleSpec&) { throw starpipe::InputError("not today"); }));
  schedules.push_back(entry("more-workers", [](ScheduleSpec& s) { ++s.workers; }));
  schedules.push_back(entry("fewer-microbatches", [](ScheduleSpec& s) { s.microbatches = 1; }));
  schedules.push_back(
      entry("other-graph", [](ScheduleSpec& s) { s.graph = StageGraph::chain(s.graph.size() + 1); }));
  schedules.push_back(entry("off-worker", [](ScheduleSpec& s) {
    s.placement = [](const Job& job) { return Placement{0, job.stage == 1 ? 1 << 20 : 0}; };
  }));
  schedules.push_back(entry("cycle", [](ScheduleSpec& s) {
    s.discipline = starpipe::plan::Discipline::ordered;
    s.priority = [](const Job& job) { return -static_cast<int>(job.pass); };
  }));
  schedules.push_back(entry("random", [](ScheduleSpec& s) {
    s.placement = [workers = s.workers, shift = next()](const Job& job) {
      return Placement{(job.stage + shift) % workers, (job.stage + shift) % workers};
    };
  }));
  schedules.push_back(entry("by-rank", [](ScheduleSpec& s) {
    const int rank = environment("PMI_RANK") == "1" ? 1 : 0;
    s.priority = [rank](const Job& job) { return rank == 0 ? job.microbatch : -job.microbatch; };
  }));
  schedules.push_back(entry("crash", [](ScheduleSpec&) { std::raise(SIGSEGV); }));
  schedules.push_back(entry("abort", [](ScheduleSpec&) { std::abort(); }));
  schedules.push_back(entry("exit", [](ScheduleSpec&) { std::exit(0); }));
  schedules.push_back(entry("exit-at-once", [](ScheduleSpec&) { _exit(0); }));
  schedules.push_back(entry("fill-stack", [](ScheduleSpec&) {
    volatile int depth = 0;
    fill_stack(&depth);
  }));
  schedules.push_back(entry("endless", [](ScheduleSpec&) {
    for (;;) std::raise(SIGCHLD);  // ignored
  }));
}
