// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "python/core/arrays.hpp"
#include "python/core/bind.hpp"
#include "python/core/dataclasses.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::python {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
template <class Value>
using Table = py::array_t<Value, py::array::c_style | py::array::forcecast>;

/// w and n by job: micro-batch by micro-batch, stage by stage, F before B (BW) before W before R, or before O
/// and L.
struct JobTables {
  Table<bool> split;         ///< by micro-batch and stage
  Table<std::int32_t> home;  ///< by micro-batch and stage, as Home::code
  Table<std::int32_t> weights;
  Table<std::int32_t> compute;
  Table<std::int64_t> priority;
};

plan::Schedule schedule_of_tables(std::string name, const plan::StageGraph& graph, int microbatches,
                                  int slices, int workers, const JobTables& tables,
                                  plan::Discipline discipline, std::vector<int> memory_limits,
                                  bool late_recomputation, bool pairs) {
  const auto split = tables.split.unchecked<1>();
  const auto home = tables.home.unchecked<1>();
  const auto home_of = [&](py::ssize_t pair) {
    if (home(pair) < 0) throw std::logic_error("home: no such home");
    return plan::Home::of_code(home(pair));
  };
  if (home.shape(0) != split.shape(0)) throw std::logic_error("split and home: one value for each pair");
  const auto more_jobs = [&](py::ssize_t pair) {
    const plan::Home waits = home_of(pair);
    return waits == plan::Home::none ? 1 : plan::is_copied(waits) ? 2 : 0;
  };
  std::vector<py::ssize_t> first = {0};  // job of each pair of micro-batch and stage
  for (py::ssize_t pair = 0; pair < split.shape(0); ++pair)
    first.push_back(first.back() + 2 + (split(pair) ? 1 : 0) + more_jobs(pair));
  const auto pair_of = [stages = graph.size()](int stage, int microbatch) {
    return index(microbatch) * index(stages) + index(stage);
  };
  if (first.size() != index(graph.size()) * index(microbatches) + 1)
    throw std::logic_error("split: one value for each micro-batch and stage");
  for (const py::ssize_t size : {tables.weights.size(), tables.compute.size(), tables.priority.size()}) {
    if (size != first.back()) throw std::logic_error("w and n: one value for each job");
  }
  const auto job_of = [&](const plan::Job& job) {
    const std::size_t pair = pair_of(job.stage, job.microbatch);
    if (job.pass == plan::Pass::R || job.pass == plan::Pass::L) return first[pair + 1] - 1;
    if (job.pass == plan::Pass::O) return first[pair + 1] - 2;
    return first[pair] + (job.pass == plan::Pass::F ? 0 : job.pass == plan::Pass::W ? 2 : 1);
  };
  const auto weights = tables.weights.unchecked<1>();
  const auto compute = tables.compute.unchecked<1>();
  const auto priority = tables.priority.unchecked<1>();
  return plan::Schedule(
      {.name = std::move(name),
       .graph = graph,
       .microbatches = microbatches,
       .slices = slices,
       .workers = workers,
       .split_backward =
           [&](int stage, int microbatch) {
             return split(static_cast<py::ssize_t>(pair_of(stage, microbatch)));
           },
       .placement =
           [&](const plan::Job& job) {
             const py::ssize_t at = job_of(job);
             return plan::Placement{.weights = weights(at), .compute = compute(at)};
           },
       .priority = [&](const plan::Job& job) { return priority(job_of(job)); },
       .discipline = discipline,
       .memory_limits = std::move(memory_limits),
       .home = [&](int stage,
                   int microbatch) { return home_of(static_cast<py::ssize_t>(pair_of(stage, microbatch))); },
       .late_recomputation = late_recomputation,
       .pairs = pairs});
}

const plan::Schedule& schedule_of(py::handle self) { return self.cast<const plan::Schedule&>(); }

void bind_graph(py::module_& module) {
  using plan::StageGraph;
  py::class_<StageGraph> graph(module, "StageGraph",
                               "The stages of a network and the edges along which they pass data.\n\n"
                               "Acyclic, with exactly one sink: the stage that ends in the loss. Immutable.");
  graph.attr("__module__") = "starpipe";
  const auto edges = [](const StageGraph& self) { return self.edges(); };
  const auto require_few = [](int stages) {
    if (stages > plan::size_limits::stages)
      throw InputError(fmt::format("stages: {}, at most {}", stages, plan::size_limits::stages));
  };
  graph
      .def(
          py::init([require_few](int stages, std::vector<std::pair<int, int>> of_edges) {
            require_few(stages);
            return StageGraph(stages, std::move(of_edges));
          }),
          "stages"_a, "edges"_a,
          "A graph of stages 0 to stages - 1 with edges (from, to).\n\n"
          "Raises InputError for a stage that does not exist, a repeated edge, a cycle, or when there is not "
          "exactly one sink.")
      .def_static(
          "chain",
          [require_few](int stages) {
            require_few(stages);
            return StageGraph::chain(stages);
          },
          "stages"_a, "Stages 0 -> 1 -> ... -> stages - 1. Raises InputError for fewer than one stage.")
      .def_property_readonly("stages", &StageGraph::size, "Number of stages.")
      .def_property_readonly("edges", edges, "Edges (from, to), sorted.")
      .def_property_readonly("sink", &StageGraph::sink, "The stage that ends in the loss.")
      .def_property_readonly("is_chain", &StageGraph::is_chain, "True if stage s feeds stage s + 1 alone.")
      .def(
          "pred",
          [](const StageGraph& self, int stage) {
            const auto stages = self.pred(stage);
            return std::vector<int>(stages.begin(), stages.end());
          },
          "stage"_a, "Stages whose output `stage` reads, ascending.")
      .def(
          "succ",
          [](const StageGraph& self, int stage) {
            const auto stages = self.succ(stage);
            return std::vector<int>(stages.begin(), stages.end());
          },
          "stage"_a, "Stages that read the output of `stage`, ascending.")
      .def("__eq__", [](const StageGraph& self, const StageGraph& other) { return self == other; })
      .def("__hash__", [](const StageGraph& self) { return py::hash(py::tuple(py::cast(self.edges()))); })
      .def("__repr__",
           [](const StageGraph& self) {
             return self.is_chain() ? fmt::format("StageGraph.chain({})", self.size())
                                    : fmt::format("StageGraph({}, {})", self.size(),
                                                  py::repr(py::cast(self.edges())).cast<std::string>());
           })
      .def(py::pickle([](const StageGraph& self) { return py::make_tuple(self.size(), self.edges()); },
                      [](const py::tuple& state) {
                        return StageGraph(state[0].cast<int>(),
                                          state[1].cast<std::vector<std::pair<int, int>>>());
                      }));
}

void bind_schedule(py::module_& module) {
  using plan::Schedule;
  const auto limits = [](const Schedule& self) {
    return std::vector<int>(self.memory_limits().begin(), self.memory_limits().end());
  };
  py::class_<Schedule>(module, "Schedule")
      .def(py::init([](std::string name, const plan::StageGraph& graph, int microbatches, int slices,
                       int workers, Table<bool> split, Table<std::int32_t> home, Table<std::int32_t> weights,
                       Table<std::int32_t> compute, Table<std::int64_t> priority, plan::Discipline discipline,
                       std::vector<int> memory_limits, bool late_recomputation, bool pairs) {
             return schedule_of_tables(std::move(name), graph, microbatches, slices, workers,
                                       {std::move(split), std::move(home), std::move(weights),
                                        std::move(compute), std::move(priority)},
                                       discipline, std::move(memory_limits), late_recomputation, pairs);
           }),
           "name"_a, "graph"_a, "microbatches"_a, "slices"_a, "workers"_a, "split"_a, "home"_a, "weights"_a,
           "compute"_a, "priority"_a, "discipline"_a, "memory_limits"_a, "late_recomputation"_a, "pairs"_a)
      .def_property_readonly("name", &Schedule::name)
      .def_property_readonly("graph", &Schedule::graph)
      .def_property_readonly("microbatches", &Schedule::microbatches)
      .def_property_readonly("slices", &Schedule::slices)
      .def_property_readonly("workers", &Schedule::workers)
      .def_property_readonly("discipline", &Schedule::discipline)
      .def_property_readonly("memory_limits", limits)
      .def_property_readonly("recomputes", py::overload_cast<>(&Schedule::recomputes, py::const_))
      .def_property_readonly("recomputes_late", &Schedule::recomputes_late)
      .def_property_readonly("copies", py::overload_cast<>(&Schedule::copies, py::const_))
      .def_property_readonly("has_pairs", &Schedule::has_pairs)
      .def_property_readonly("partner",
                             [](const Schedule& self) {
                               py::array_t<std::int64_t> partners(self.id_count());
                               auto partner = partners.mutable_unchecked<1>();
                               for (plan::JobId id = 0; id < self.id_count(); ++id)
                                 partner(id) = self.partner(id) ? std::int64_t{*self.partner(id)} : -1;
                               return partners;
                             })
      .def_property_readonly("home",
                             [](const Schedule& self) {
                               py::array_t<std::int32_t> homes(self.microbatches() * self.stages());
                               auto home = homes.mutable_unchecked<1>();
                               for (int b = 0; b < self.microbatches(); ++b) {
                                 for (int s = 0; s < self.stages(); ++s)
                                   home(b * self.stages() + s) = self.home(s, b).code();
                               }
                               return homes;
                             })
      .def_property_readonly("id_count", &Schedule::id_count)
      .def_property_readonly("job_count", &Schedule::job_count)
      .def_property_readonly("split_backward", py::overload_cast<>(&Schedule::split_backward, py::const_))
      .def_property_readonly("compute",
                             [](py::handle self) {
                               return view(schedule_of(self).placements(), &plan::Placement::compute, self);
                             })
      .def_property_readonly("weights",
                             [](py::handle self) {
                               return view(schedule_of(self).placements(), &plan::Placement::weights, self);
                             })
      .def_property_readonly("turn", [](py::handle self) { return view(schedule_of(self).turns(), self); })
      .def_property_readonly("order", [](py::handle self) { return view(schedule_of(self).order(), self); })
      .def(
          "order_of", [](py::handle self, int worker) { return view(schedule_of(self).order(worker), self); },
          "worker"_a)
      .def("job", &Schedule::job, "id"_a)
      .def("find", &Schedule::find, "job"_a)
      .def(
          "with_homes",
          [](const Schedule& self, const std::vector<int>& homes) {
            if (homes.size() != index(self.stages()) * index(self.microbatches()))
              throw std::logic_error("homes: one for each pair");
            return self.with_homes([&](int stage, int microbatch) {
              return plan::Home::of_code(homes.at(index(microbatch) * index(self.stages()) + index(stage)));
            });
          },
          "homes"_a)
      .def("with_discipline", &Schedule::with, "discipline"_a, "memory_limits"_a)
      .def("__eq__", [](const Schedule& self, const Schedule& other) { return self == other; });
}

py::tuple check(const plan::Schedule& schedule) {
  plan::CheckResult result;
  {
    const py::gil_scoped_release released;
    result = plan::check(schedule);
  }
  return py::make_tuple(result.problem, result.cycle);
}

py::list entries() {
  py::list all;
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    py::list options;
    for (const plan::ScheduleOption& option : entry.options)
      options.append(py::dict("name"_a = option.name, "meaning"_a = option.meaning,
                              "default"_a = option.default_value, "min"_a = option.min,
                              "max"_a = option.max));
    all.append(py::dict("name"_a = entry.name, "summary"_a = entry.summary, "source"_a = entry.source,
                        "alias"_a = entry.alias, "options"_a = options));
  }
  return all;
}

py::tuple named_schedule(const std::string& name, int workers, int microbatches, int slices,
                         const std::optional<plan::StageGraph>& graph, const std::optional<int>& groups,
                         std::vector<int> stage_workers, plan::ScheduleOptions options,
                         const std::optional<plan::Discipline>& discipline, std::vector<int> memory_limits,
                         const std::vector<std::string>& homes, const plan::Costs& costs, bool per_share) {
  std::vector<plan::Home> parsed;
  for (const std::string& home : homes) parsed.push_back(plan::parse_home(home));
  const plan::ScheduleRequest request{.workers = workers,
                                      .microbatches = microbatches,
                                      .slices = slices,
                                      .graph = graph,
                                      .homes = std::move(parsed),
                                      .groups = groups,
                                      .stage_workers = std::move(stage_workers),
                                      .options = std::move(options)};
  const int stages =
      graph ? graph->size() : plan::default_stages(plan::find_schedule(name), workers, request.options);
  plan::require_few_jobs("microbatches", stages, std::int64_t{microbatches} * slices);
  plan::OrderRequest order{.discipline = discipline, .memory_limits = std::move(memory_limits)};
  const auto [made, of_stages] = [&] {
    const py::gil_scoped_release released;
    return plan::make_costed_schedule(name, request, std::move(order), costs, per_share);
  }();
  return py::make_tuple(made.schedule, made.reordering, of_stages);
}

}  // namespace

void bind_schedules(py::module_& module) {
  bind_graph(module);
  bind_schedule(module);
  namespace limits = plan::size_limits;
  module.attr("size_limits") = py::dict(
      "workers"_a = limits::workers, "microbatches"_a = limits::microbatches, "stages"_a = limits::stages,
      "units"_a = limits::units, "search_workers"_a = limits::search_workers, "slices"_a = limits::slices,
      "search_microbatches"_a = limits::search_microbatches, "search_chunks"_a = limits::search_chunks,
      "periodic_stages"_a = limits::periodic_stages, "periodic_repetitions"_a = limits::periodic_repetitions);
  module.def(
      "require_few_jobs",
      [](const std::string& key, int stages, int microbatches) {
        plan::require_few_jobs(key, stages, microbatches);
      },
      "key"_a, "stages"_a, "microbatches"_a);
  module.def("check", check, "schedule"_a);
  module.def("schedule_entries", entries);
  module.def("named_schedule", named_schedule, "name"_a, "workers"_a, "microbatches"_a, "slices"_a, "graph"_a,
             "groups"_a, "stage_workers"_a, "options"_a, "discipline"_a, "memory_limits"_a, "homes"_a,
             "costs"_a, "per_share"_a);
  module.def(
      "as_requested",
      [](const plan::Schedule& schedule, std::vector<int> memory_limits, std::string home_way,
         const plan::Costs& costs) {
        const plan::LimitedSchedule made = [&] {
          const py::gil_scoped_release released;
          return plan::as_requested(
              schedule, {.memory_limits = std::move(memory_limits), .home_way = std::move(home_way)}, costs);
        }();
        return py::make_tuple(made.schedule, made.reordering);
      },
      "schedule"_a, "memory_limits"_a, "home_way"_a, "costs"_a);
  module.def(
      "load_plugin", [](const std::string& file) { return plan::load_plugin(file); }, "file"_a);
}

}  // namespace starpipe::python
