// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/info.hpp"

#include <functional>

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "cli/commands/ranks.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/input/input_files.hpp"
#include "runtime/api/agreed_run.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/report/measured_links.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/version.hpp"

namespace starpipe::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* sanitizer() {
#if defined(__SANITIZE_ADDRESS__)
  return "address";
#elif defined(__SANITIZE_THREAD__)
  return "thread";
#else
  return "none";
#endif
}

/// Read from the name of the library, such as libyaml-cpp.so.0.7.0: yaml-cpp has no other record of its
/// version.
std::string yaml_cpp_version() {
  Dl_info library{};
  // Any function of the library that cannot be inlined.
  std::string (*const function)(const YAML::Node&) = &YAML::Dump;
  std::error_code error;
  if (::dladdr(reinterpret_cast<const void*>(function), &library) == 0) return "unknown";
  const std::string name = std::filesystem::canonical(library.dli_fname, error).filename().string();
  const std::string_view before = ".so.";
  const auto at = name.find(before);
  return at == std::string::npos ? "unknown" : name.substr(at + before.size());
}

ordered_json facts() {
  std::vector<std::string> schedules;
  for (const auto& entry : plan::schedule_entries()) schedules.push_back(entry.name);
  return {{"version", version},
          {"commit", commit()},
          {"compiler", compiler},
          {"build_type", build_type},
          {"sanitizer", sanitizer()},
          {"schedules", schedules},
          {"models", model::network_kinds()},
          {"configuration", runtime::keys_json(runtime::config_keys())},
          {"libraries",
           {{"CLI11", CLI11_VERSION},
            {"yaml-cpp", yaml_cpp_version()},
            {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
            {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                          NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)}}}};
}

std::string joined(const ordered_json& list) {
  return fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), ", "));
}

struct InfoOptions {
  ConfigOptions config;
  runtime::MappingRequest mapping;
  std::optional<std::string> links;
  bool json = false;
};

/// Measures the links between the ranks of this launcher's job, and writes them to a file.
int measure(const std::string& file) {
  return run_on_ranks([&file](Runtime& runtime) {
    const auto on_root = [&](const std::function<void()>& work) {
      runtime.agree([&] {
        if (runtime.rank() == 0) work();
        return true;
      });
    };
    on_root([&] {
      require_suffix("--links", file, std::array<std::string_view, 1>{".yaml"});
      require_writable("--links", file);
    });
    const runtime::MeasuredLinks measured = runtime::measure_links(runtime.mpi());
    on_root([&] { write_file("--links", file, links_yaml(measured.links, measured.notes)); });
  });
}

/// Prints on rank 0 where each rank would run in a training run of the configuration: its machine, its share
/// of the cores, who bound it to them, and its workers. StarPU does not start.
int show_ranks(const InfoOptions& options) {
  return run_on_ranks([&](Runtime& runtime) {
    runtime::RankRequest request("info");
    request.add_flag("--json", options.json);
    const runtime::AgreedRuns agreed = runtime::agree_on_runs(
        runtime.mpi(), {agree_on_config(runtime, request, [&] { return options.config.load(); })});
    if (runtime.rank() != 0) return;
    const runtime::AgreedRun& run = agreed.runs.front();
    const plan::Schedule& schedule = run.experiment.schedule;
    if (options.json) {
      print(plan::json_text({{"schedule", schedule.name()}, {"ranks", runtime::ranks_json(run.locations)}}));
      return;
    }
    print(fmt::format("{}: {}, {}\n\n{}", schedule.name(), counted_text(schedule.workers(), "worker"),
                      counted_text(runtime.ranks(), "rank"), runtime::rank_table(run.locations)));
  });
}

/// Prints the device of each worker of the configured schedule; under a launcher, where its ranks run.
int map(const InfoOptions& options) {
  const std::optional<int> rank = runtime::launcher_rank();
  if (rank && options.mapping.nodes.empty() && options.mapping.ranks == 0) return show_ranks(options);
  if (rank.value_or(0) != 0) return 0;  // rank 0 prints for all
  runtime::Config config = options.config.load();
  if (const auto choice = runtime::choose_partition(config))
    config = runtime::with_partition(config, *choice);
  print(runtime::describe_mapping(config, options.mapping, options.json));
  return 0;
}

int info(bool json) {
  ordered_json all = facts();
  ordered_json facts_of_runtime = runtime::runtime_facts();
  if (json) {
    all["runtime"] = std::move(facts_of_runtime);
    print(plan::json_text(all));
    return 0;
  }
  // runtime_text() names version, commit and compiler already.
  std::vector<std::string> libraries;
  for (const auto& [name, number] : all["libraries"].items()) {
    libraries.push_back(name + " " + number.get<std::string>());
  }
  std::vector<TableRow> rows = {{"libraries", fmt::format("{}", fmt::join(libraries, ", "))},
                                {"sanitizer", all["sanitizer"].get<std::string>()}};
  for (const char* name : {"models", "schedules"}) rows.push_back({name, joined(all[name])});
  print(runtime::runtime_text(facts_of_runtime) + table_text(rows, runtime::info_columns));
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("info",
                                               "Show versions and hardware; with a configuration, the device "
                                               "of each worker and the cores of each rank (under mpiexec or "
                                               "srun, of the ranks that it starts)");
  const auto options = std::make_shared<InfoOptions>();
  CLI::Option* const config = options->config.add_to(*command, /*required=*/false);
  options->config.add_plugin_to(*command);
  command->add_flag("--json", options->json, "Print JSON");
  add_option(
      *command, "--topology FILE.xml", options->mapping.nodes,
      "Map workers to a node described by this file, which `lstopo FILE.xml` writes, instead of to this "
      "machine; repeat for more nodes")
      ->needs(config);
  add_option(*command, "--ranks N", options->mapping.ranks,
             "Number of MPI ranks, spread over the nodes (default: one on each node)",
             whole_number(1, 1 << 20))
      ->needs(config);
  add_option(
      *command, "--links FILE.yaml", options->links,
      "Measure the links between the ranks, by messages of several sizes, and write them to a file that "
      "--links of other commands reads; under mpiexec or srun")
      ->excludes(config)
      ->excludes("--json");
  command->footer(
      "Examples:\n"
      "  mpiexec -n 2 starpipe info --links links.yaml\n"
      "  starpipe info experiments/quickstart.yaml --set runtime.mapping=auto --ranks 2\n"
      "  starpipe info experiments/quickstart.yaml --set runtime.device=cuda --topology node.xml --topology "
      "node.xml");
  command->callback([options, config, &action] {
    const bool mapping = config->count() > 0;
    action = [options, mapping] {
      if (options->links) return measure(*options->links);
      return mapping ? map(*options) : info(options->json);
    };
  });
}

}  // namespace starpipe::cli
