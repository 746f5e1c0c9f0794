// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "plan/formats/results.hpp"
#include "python/core/bind.hpp"
#include "python/core/dataclasses.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/search/search.hpp"

namespace starpipe::python {

template <>
struct Dataclass<plan::SharedUnits> {
  static constexpr const char* name = "SharedUnits";
  static constexpr std::tuple fields = {
      Field{"units", &plan::SharedUnits::units}, Field{"weights", &plan::SharedUnits::weights},
      Field{"master", &plan::SharedUnits::master}, Field{"name", &plan::SharedUnits::name}};
};
template <>
struct Dataclass<plan::WorkerLoad> {
  static constexpr const char* name = "WorkerLoad";
  static constexpr std::tuple fields = {Field{"time", &plan::WorkerLoad::time},
                                        Field{"transfers", &plan::WorkerLoad::transfers},
                                        Field{"memory", &plan::WorkerLoad::memory}};
};
template <>
struct Dataclass<plan::ChainStage> {
  static constexpr const char* name = "ChainStage";
  static constexpr std::tuple fields = {
      Field{"forward", &plan::ChainStage::forward}, Field{"backward", &plan::ChainStage::backward},
      Field{"weights", &plan::ChainStage::weights}, Field{"activation", &plan::ChainStage::activation}};
};
template <>
struct Dataclass<plan::PeriodicOperation> {
  static constexpr const char* name = "PeriodicOperation";
  static constexpr std::tuple fields = {
      Field{"stage", &plan::PeriodicOperation::stage}, Field{"pass_", &plan::PeriodicOperation::pass},
      Field{"worker", &plan::PeriodicOperation::worker}, Field{"start", &plan::PeriodicOperation::start},
      Field{"shift", &plan::PeriodicOperation::shift}};
};
template <>
struct Dataclass<plan::SearchProgress> {
  static constexpr const char* name = "SearchProgress";
  static constexpr std::tuple fields = {Field{"seconds", &plan::SearchProgress::seconds},
                                        Field{"done", &plan::SearchProgress::done},
                                        Field{"makespan", &plan::SearchProgress::makespan},
                                        Field{"lower_bound", &plan::SearchProgress::lower_bound}};
};

namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Releasing = py::call_guard<py::gil_scoped_release>;

/// The first exception of Python's while `search` runs without the interpreter's lock: of the progress
/// function, or of a signal's handler such as KeyboardInterrupt. It stops the search.
class Interruption {
 public:
  explicit Interruption(py::object progress) : progress_(std::move(progress)) {}

  /// Shows the progress.
  void show(const plan::SearchProgress& progress) {
    if (progress_.is_none()) return;
    call([&] { progress_(progress); });
  }
  /// True if the search has to stop.
  bool stops() {
    call([] {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    });
    return error_.has_value();
  }
  /// Throws the exception unless it is a KeyboardInterrupt. Returns true if it is one.
  [[nodiscard]] bool interrupted() const {
    if (!error_) return false;
    if (!error_->matches(PyExc_KeyboardInterrupt)) throw py::error_already_set(*error_);
    return true;
  }

 private:
  template <class Call>
  void call(Call&& of_python) {
    if (error_) return;
    const py::gil_scoped_acquire acquired;
    try {
      of_python();
    } catch (py::error_already_set& error) {
      error_.emplace(error);
    }
  }

  py::object progress_;
  std::optional<py::error_already_set> error_;
};

py::dict search(const plan::SearchRequest& request, plan::SearchOptions options, const py::object& progress) {
  Interruption interruption(progress);
  options.progress = [&](const plan::SearchProgress& now) { interruption.show(now); };
  options.stop = [&] { return interruption.stops(); };
  const plan::SearchResult result = [&] {
    const py::gil_scoped_release released;
    return plan::search(request, options);
  }();
  const bool interrupted = interruption.interrupted();
  std::vector<std::pair<std::string, std::string>> unused;
  for (const plan::UnusedStart& start : result.unused) unused.emplace_back(start.schedule, start.reason);
  return py::dict("schedule"_a = result.schedule, "costs"_a = result.costs, "timeline"_a = result.timeline,
                  "layout"_a = std::string(to_string(result.layout)), "chunks"_a = result.chunks,
                  "memory_limits"_a = result.memory_limits, "peak_memory"_a = result.peak_memory,
                  "lower_bound"_a = result.lower_bound, "complete"_a = result.complete,
                  "interrupted"_a = interrupted, "unused"_a = unused,
                  "json"_a = plan::search_json(result, options).dump());
}

void bind_search(py::module_& module) {
  module.def(
      "search",
      [](int workers, int microbatches, int slices, const std::optional<int>& chunks,
         const std::optional<std::string>& layout, const plan::Costs& costs, const std::vector<double>& stash,
         const std::vector<double>& memory_limits, const std::vector<std::string>& homes, double budget,
         const std::optional<double>& work, std::uint64_t seed, const py::object& progress) {
        plan::require_few_jobs("microbatches", std::int64_t{workers} * chunks.value_or(1),
                               std::int64_t{microbatches} * slices, plan::size_limits::search_pairs);
        plan::SearchRequest request{
            .workers = workers, .microbatches = microbatches, .slices = slices, .chunks = chunks};
        if (layout) request.layout = plan::parse_layout(*layout);
        request.costs = costs;
        request.stash = stash;
        if (!memory_limits.empty()) request.memory_limits = memory_limits;
        plan::set_homes(request, homes);
        return search(request, {.budget = budget, .work = work, .seed = seed}, progress);
      },
      "workers"_a, "microbatches"_a, "slices"_a, "chunks"_a, "layout"_a, "costs"_a, "stash"_a,
      "memory_limits"_a, "homes"_a, "budget"_a, "work"_a, "seed"_a, "progress"_a);
}

/// Returns a unit of the package's dataclass: its devices are the kinds, in the order of `devices`.
plan::UnitCosts unit_of(py::handle unit, const std::vector<std::string>& devices) {
  plan::UnitCosts costs{.name = unit.attr("name").cast<std::string>(),
                        .sizes = unit.attr("sizes").cast<plan::StageSizes>()};
  const py::object times = unit.attr("times");
  for (std::size_t kind = 0; kind < devices.size(); ++kind) {
    const auto time = times[py::str(devices[kind])].cast<plan::Durations>();
    if (kind == 0) {
      costs.time = time;
    } else {
      costs.others.push_back(time);
    }
  }
  return costs;
}

void bind_partition(py::module_& module) {
  module.def(
      "partition",
      [](const py::list& units, const std::vector<plan::SharedUnits>& shared,
         const std::vector<std::string>& devices, const std::vector<std::string>& wanted, int workers,
         const std::string& schedule, int microbatches, const std::optional<int>& chunks,
         const std::optional<std::string>& layout, bool general, const plan::Links& links,
         const std::vector<double>& memory_limits, double optimizer_states) {
        plan::ScheduledPartition asked{.schedule = schedule, .microbatches = microbatches, .chunks = chunks};
        if (layout) asked.layout = plan::parse_layout(*layout);
        asked.general = general;
        asked.request.workers = workers;
        for (const py::handle unit : units) asked.request.units.push_back(unit_of(unit, devices));
        asked.request.shared = shared;
        asked.request.kinds = plan::Profile{.devices = devices}.kinds_of(wanted, workers);
        asked.request.links = links;
        if (!memory_limits.empty()) asked.request.memory_limits = memory_limits;
        asked.request.optimizer_states = optimizer_states;
        const plan::PartitionResult result = [&] {
          const py::gil_scoped_release released;
          return plan::partition_for(asked);
        }();
        const plan::Partition& found = result.found;
        return py::dict("cuts"_a = found.cuts, "placement"_a = found.stage_workers, "loads"_a = found.loads,
                        "bottleneck"_a = found.bottleneck, "lower_bound"_a = found.lower_bound,
                        "optimal"_a = found.optimal(), "costs"_a = result.costs);
      },
      "units"_a, "shared"_a, "devices"_a, "wanted"_a, "workers"_a, "schedule"_a, "microbatches"_a, "chunks"_a,
      "layout"_a, "general"_a, "links"_a, "memory_limits"_a, "optimizer_states"_a);
}

void bind_periodic(py::module_& module) {
  module.def(
      "periodic",
      [](const std::vector<plan::ChainStage>& chain, const std::vector<int>& workers,
         const std::optional<double>& memory, const std::optional<int>& repeat,
         const std::optional<double>& period, int microbatches) {
        plan::require_few_jobs("microbatches", std::ssize(chain), microbatches,
                               plan::size_limits::periodic_pairs);
        const plan::PeriodicRequest request{chain, workers, memory, repeat, period};
        const auto [result, schedule] = [&] {
          const py::gil_scoped_release released;
          plan::PeriodicResult solved = plan::solve_periodic(request);
          plan::Schedule unrolled = plan::unrolled("periodic", solved.pattern, chain, microbatches);
          return std::pair(std::move(solved), std::move(unrolled));
        }();
        const plan::PeriodicPattern& pattern = result.pattern;
        return py::dict("period"_a = pattern.period, "microbatches"_a = pattern.microbatches,
                        "operations"_a = pattern.operations, "lower_bound"_a = result.bound,
                        "optimal"_a = result.best_of > 0,
                        "concurrent_activations"_a = plan::concurrent_activations(pattern, chain),
                        "memory"_a = plan::pattern_memory(pattern, chain), "schedule"_a = schedule,
                        "costs"_a = plan::costs_of_chain(chain),
                        "json"_a = plan::periodic_json(result, chain).dump());
      },
      "chain"_a, "workers"_a, "memory"_a, "repeat"_a, "period"_a, "microbatches"_a);
}

}  // namespace

void bind_searches(py::module_& module) {
  bind_search(module);
  bind_partition(module);
  bind_periodic(module);
}

}  // namespace starpipe::python
