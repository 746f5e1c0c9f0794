// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/subcommand.hpp"
#include "cli/conformance/subprocess.hpp"
#include "cli/input/cluster_file.hpp"
#include "cli/options/config_options.hpp"
#include "cli/options/output_files.hpp"
#include "cli/options/value_checks.hpp"
#include "cli/processes/temporary_folder.hpp"
#include "starpipe/base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/messages.hpp"
#include "starpipe/base/signals.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/runtime/commands/cluster_run.hpp"
#include "starpipe/runtime/setup/experiment.hpp"
#include "starpipe/runtime/simulation/machine_files.hpp"

namespace starpipe::cli {
namespace {

namespace fs = std::filesystem;

struct SimOptions {
  ConfigOptions config;
  fs::path cluster;
  std::optional<int> nodes;
  std::optional<fs::path> report;
};

// Steps of a simulated run: one warms up, since weights begin in main memory. Simulated steps repeat exactly,
// so one more is enough.
constexpr int steps = 2;
constexpr int most_nodes = 4096;

/// The engine on SimGrid, which lies beside this program or is installed with it.
fs::path find_engine() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path name = "starpipe-simulated.so";
  for (const fs::path& file : {folder / name, folder.parent_path() / "libexec" / "starpipe" / name}) {
    if (fs::exists(file)) return file;
  }
  throw InputError(
      "sim: this starpipe was built without simulated GPUs; scripts/setup --simgrid and cmake --preset "
      "simgrid build one "
      "that has them");
}

/// SimGrid's options. MPI's factors for real networks are off: a link has the latency and the bandwidth that
/// the cluster file gives it, also for messages.
std::vector<std::string> simgrid_options(const fs::path& folder) {
  std::vector<std::string> options = {"--log=root.thresh:critical"};
  for (const char* setting :
       {"network/model:CM02", "network/TCP-gamma:-1", "network/latency-factor:1",
        "network/bandwidth-factor:1", "network/weight-S:0", "network/crosstraffic:0",
        "smpi/simulate-computation:no", "smpi/host-speed:1", "contexts/stack-size:1024"})
    options.push_back(fmt::format("--cfg={}", setting));
  options.push_back(fmt::format("--cfg=smpi/tmpdir:{}", folder.string()));
  return options;
}

nlohmann::json request_of(const SimOptions& options, const plan::Costs& costs, const std::string& result) {
  std::vector<std::string> overrides = options.config.all_overrides();
  if (const std::string policy = environment("STARPU_SCHED").value_or(""); !policy.empty())
    overrides.push_back("runtime.policy=" + policy);
  nlohmann::json durations = nlohmann::json::array();
  for (const plan::Durations& of_stage : costs.durations)
    durations.push_back({of_stage.F, of_stage.B, of_stage.W});
  return {{"config", options.config.file()},
          {"overrides", std::move(overrides)},
          {"plugins", options.config.plugins()},
          {"durations", std::move(durations)},
          {"steps", steps},
          {"result", result}};
}

/// Runs the engine on SimGrid. Returns what rank 0 has written.
nlohmann::json simulate_ranks(const SimOptions& options, const runtime::Cluster& cluster, int workers,
                              const plan::Costs& costs) {
  const fs::path engine = find_engine();
  const HeldSignals held;  // until the folder is removed
  const TemporaryFolder folder;
  const std::string request = folder.file("request.json");
  const std::string result = folder.file("result.json");
  write_file("sim", request, request_of(options, costs, result).dump());
  const runtime::MachineFiles files = runtime::write_machine_files(cluster, workers, folder.path());
  std::vector<std::string> command = {"env"};
  for (const auto& [name, value] : files.environment) command.push_back(fmt::format("{}={}", name, value));
  for (const std::string& word :
       {std::string("smpirun"), std::string("-platform"), files.platform.string(), std::string("-hostfile"),
        files.hosts.string(), std::string("-np"), std::to_string(cluster.nodes(workers))})
    command.push_back(word);
  for (std::string& word : simgrid_options(folder.path())) command.push_back(std::move(word));
  command.push_back(engine.string());
  command.push_back(request);
  const SubprocessResult run = run_program(command, std::chrono::hours(24));
  // SimGrid's exit status says nothing: it is 0 after a deadlock too.
  if (!fs::exists(result)) {
    print_message(run.output);
    throw std::runtime_error(run.failure.empty() ? "the simulation ended without a result"
                                                 : "the simulation failed: " + run.failure);
  }
  return nlohmann::json::parse(read_file(result));
}

int sim(SimOptions options) {
  if (options.report) require_writable("--report", *options.report);
  const runtime::Cluster cluster = read_cluster(options.cluster);
  if (options.nodes) {
    options.config.set("schedule.workers", std::to_string(*options.nodes * cluster.gpus_per_node), "--nodes");
  }
  const runtime::Config config = options.config.load();
  std::vector<fs::path> inputs = inputs_of(config);
  inputs.push_back(options.cluster);
  check_outputs(std::array{OutputFile{"--report", options.report, ".json"}}, inputs);
  const runtime::Experiment experiment = runtime::make_experiment(config);
  const int workers = experiment.schedule.workers();
  const plan::Costs costs = runtime::cluster_costs(experiment, cluster);
  runtime::check_gpu_memory(config, experiment, cluster, costs);
  const nlohmann::json result = simulate_ranks(options, cluster, workers, costs);
  const runtime::ClusterRun run =
      runtime::read_cluster_run(config, experiment, cluster, costs, result, steps);
  print(runtime::cluster_table(run));
  if (options.report) write_file("--report", *options.report, plan::json_text(runtime::cluster_report(run)));
  return 0;
}

void add_sim(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("sim", "Run the engine on the simulated GPUs of a cluster (SimGrid)");
  const auto options = std::make_shared<SimOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  command->add_option("--cluster", options->cluster, "The machine: its nodes, GPUs and links")
      ->required()
      ->type_name("FILE.yaml");
  command
      ->add_option(
          "--nodes", options->nodes,
          "Workers on all GPUs of this many nodes; without it, schedule.workers says how many there are")
      ->transform(whole_number(1, most_nodes))
      ->type_name("N");
  command->add_option("--report", options->report, "Also write predicted and simulated figures as JSON")
      ->type_name("FILE.json");
  command->footer(
      "Example:\n"
      "  starpipe sim experiments/emulated.yaml --cluster experiments/clusters/nvlink.yaml");
  command->callback([options, &action] { action = [options] { return sim(*options); }; });
}

const bool sim_registered = register_subcommand({.position = 35, .add = add_sim});

}  // namespace
}  // namespace starpipe::cli
