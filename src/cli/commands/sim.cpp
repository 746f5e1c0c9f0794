// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <map>
#include <sstream>
#include <string>

#include <unistd.h>

#include "base/environment.hpp"
#include "base/signals.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/input/input_files.hpp"
#include "cli/processes/processes.hpp"
#include "plan/formats/explanation.hpp"
#include "runtime/api/cluster_run.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/engine/step_run.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "runtime/simulation/cluster.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::cli {
namespace {

namespace fs = std::filesystem;

struct SimOptions {
  ConfigOptions config;
  fs::path cluster;
  std::optional<int> nodes;
  int ranks_per_node = 1;
  std::string sharing;
  bool gpu_direct = false;
  CostOptions durations;
  bool per_share = false;
  OutputFiles outputs;
};

// Steps of a simulated run: one warms up, since weights begin in main memory. Simulated steps repeat exactly,
// so one more is enough.
constexpr int simulated_steps = 2;
constexpr int max_nodes = 4096;
constexpr int max_ranks_per_node = 8;

/// Returns the engine on SimGrid, which lies next to this program or is installed with it.
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

/// SimGrid prints one of all its threads after a deadlock.
std::string without_backtraces(const std::string& output) {
  std::istringstream lines(output);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && !line.starts_with("Backtrace (") && !line.starts_with("  -> ")) kept += line + '\n';
  }
  return kept;
}

/// Runs the engine on SimGrid, with files in `folder`. Returns what rank 0 has written.
/// `copies`: the schedule copies stashes.
nlohmann::json simulate_ranks(const SimulatedRequest& request, const runtime::Cluster& cluster, int workers,
                              bool copies, const TemporaryFolder& folder) {
  const fs::path engine = find_engine();
  const std::string request_file = folder / "request.json";
  write_file("sim", request_file, nlohmann::json(request).dump());
  const runtime::MachineFiles files = runtime::write_machine_files(cluster, workers, folder.path(), copies);
  const SubprocessResult run = run_program(
      runtime::smpirun_command(files, engine, {request_file, std::to_string(getpid())}, folder.path()),
      std::chrono::hours(24));
  // SimGrid's exit status says nothing: it is 0 after a deadlock too.
  if (!fs::exists(request.result)) {
    print_message(without_backtraces(run.output));
    if (!run.failure.empty()) throw std::runtime_error("the simulation failed: " + run.failure);
    throw std::runtime_error(
        run.output.find("Deadlock detected") != std::string::npos
            ? "the simulation ended without a result: StarPU waits indefinitely, mostly for memory of a GPU "
              "(gpu_memory, STARPU_LIMIT_CUDA_MEM)"
            : "the simulation ended without a result");
  }
  return nlohmann::json::parse(read_file(request.result));
}

/// Returns the kind of device of each stage. Empty where the cluster names none.
std::vector<std::string> devices_of_stages(const plan::Schedule& schedule, const runtime::Cluster& cluster) {
  std::vector<std::string> devices(index(schedule.stages()));
  for (const plan::JobId id : schedule.order()) {
    const int stage = schedule.job(id).stage;
    const std::string device = cluster.device(schedule.compute(id));
    std::string& known = devices[index(stage)];
    if (!known.empty() && known != device) {
      throw InputError(fmt::format(
          "--cluster: device: stage {} runs on {} and on {}; durations by kind of device need stages "
          "on one kind each",
          stage, known, device));
    }
    known = device;
  }
  return devices;
}

/// Returns the durations of --durations, by stage.
std::vector<plan::Durations> given_durations(const SimOptions& options, const runtime::Config& config,
                                             const runtime::Cluster& cluster) {
  const runtime::Experiment experiment = runtime::make_experiment(config);
  const plan::Schedule& schedule = experiment.schedule;
  cluster.check(schedule.workers());  // before the kinds of the GPUs are asked for
  std::map<std::string, plan::Costs> by_device;
  std::vector<plan::Durations> durations;
  for (const std::string& device : devices_of_stages(schedule, cluster)) {
    const auto [found, is_new] = by_device.try_emplace(device);
    plan::Costs& costs = found->second;
    if (is_new) {
      std::string unit;
      options.durations.apply(costs, unit, options.per_share ? schedule.workers() : schedule.stages(),
                              device);
      if (unit != "s") throw InputError("--durations: simulated GPUs need times with units (s, ms, us)");
      if (options.per_share) {
        plan::Costs of_shares;
        of_shares.durations = costs.durations;
        costs.durations = plan::costs_of_stages(of_shares, schedule.workers(), schedule.stages()).durations;
      }
    }
    durations.push_back(costs.duration(static_cast<int>(durations.size())));
  }
  return durations;
}

/// Keys that change nothing on simulated GPUs: the cluster has the links, SimGrid ends a run that cannot
/// continue, and each GPU has one worker, in their order.
constexpr std::array<std::string_view, 11> unused_by_sim = {
    "training.steps",       "runtime.timeout",        "runtime.workers_per_core",
    "runtime.mapping",      "runtime.emulate.comm",   "runtime.emulate.links",
    "runtime.links",        "runtime.emulate.copy",   "runtime.emulate.peer_copy",
    "runtime.stash_folder", "runtime.emulate.overlap"};

/// Refuses settings of the file with which a real run would differ from the simulated one.
void check_simulated(const ConfigOptions& options, const runtime::Config& config) {
  options.refuse_overrides("sim", unused_by_sim);
  if (config.runtime.emulate && !config.runtime.emulate->prefetch)
    throw InputError("runtime.emulate.prefetch: false: simulated GPUs fetch the inputs of a job before it");
  if (config.runtime.emulate && config.runtime.emulate->overlap)
    throw InputError("runtime.emulate.overlap: simulated GPUs run one job at a time");
  if (config.runtime.mapping != runtime::MappingKind::linear)
    throw InputError("runtime.mapping: auto: the workers of simulated GPUs are in their order");
}

/// Returns the configuration with the durations of its jobs in `runtime.emulate`: the durations of
/// --durations, else the measured ones of its partition, else its own.
runtime::Config with_durations(const SimOptions& options, const runtime::Cluster& cluster) {
  runtime::Config config = options.config.load();
  check_simulated(options.config, config);
  if (const std::string policy = environment("STARPU_SCHED").value_or(""); !policy.empty())
    config.runtime.policy = policy;
  const std::optional<runtime::PartitionChoice> partition = runtime::choose_partition(config);
  if (options.durations.gives_durations()) {
    if (partition) config = runtime::with_partition(std::move(config), *partition);
    return runtime::with_emulated_times(config, given_durations(options, config, cluster));
  }
  if (partition) return runtime::with_measured_times(std::move(config), *partition);
  if (config.runtime.emulate) return config;
  throw InputError(
      "runtime.emulate: is missing: simulated GPUs compute nothing and need the times of F, B and W; "
      "--durations or schedule.partition with a profile give them, too");
}

/// Returns the configuration that the ranks read. SimGrid loads the engine once for each rank, and plug-ins
/// would not find its functions: a schedule that one of them makes reaches the ranks as a file in `folder`.
/// Throws InputError where the ranks would need the plug-in itself. `kinds`: the networks without plug-ins.
runtime::Config without_plugins(runtime::Config config, const runtime::Experiment& experiment,
                                const std::vector<std::string>& kinds, const TemporaryFolder& folder) {
  if (config.schedule.plugins.empty()) return config;
  const plan::Schedule& schedule = experiment.schedule;
  if (std::ranges::find(kinds, config.model.kind) == kinds.end())
    throw InputError(fmt::format("model.kind: {}: sim does not run networks of plug-ins", config.model.kind));
  if (!experiment.network.parts.empty())
    throw InputError("model.tensor: sim does not run shards with the schedules of plug-ins");
  if (schedule.discipline() != plan::Discipline::ordered)
    throw InputError("schedule.dynamic: sim runs schedules of plug-ins in a fixed order");
  const plan::Costs& costs = experiment.costs;
  const std::string file = folder / "schedule.json";
  write_file("sim", file, plan::schedule_json(schedule, costs, plan::simulate(schedule, costs), "s").dump());
  runtime::ScheduleConfig of_file;
  of_file.file = file;
  of_file.workers = schedule.workers();
  of_file.stages = schedule.stages();
  of_file.cuts = config.schedule.cuts;
  config.schedule = std::move(of_file);
  return config;
}

// Returns "x" when prediction and simulation agree, "x / y" when they do not.
std::string pair_text(const std::string& predicted, const std::string& simulated) {
  return predicted == simulated ? predicted : predicted + " / " + simulated;
}

std::string whole_table(const runtime::ClusterRun& run) {
  const plan::Timeline& predicted = run.compared.predicted.timeline;
  const plan::Timeline& simulated = run.compared.measured.timeline;
  constexpr std::array columns = {TableColumn{Align::left, 28}, TableColumn{Align::right, 12},
                                  TableColumn{Align::right, 12}, TableColumn{Align::left}};
  const auto milliseconds = [](double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); };
  std::vector<TableRow> rows = {{"", "predicted", "simulated", "difference"}};
  const auto add_time = [&](const char* name, double expected, double found) {
    rows.push_back({name, milliseconds(expected), milliseconds(found),
                    fmt::format("{:>10}", fmt::format("{:+.2f} %", (found / expected - 1) * 100))});
  };
  add_time("makespan", predicted.makespan, simulated.makespan);
  if (simulated.gradients_summed)
    add_time("with gradients summed", *predicted.gradients_summed, *simulated.gradients_summed);
  rows.push_back(
      {"bubble fraction", percent_text(predicted.bubble_fraction), percent_text(simulated.bubble_fraction),
       fmt::format("{:>+4.1f} points", (simulated.bubble_fraction - predicted.bubble_fraction) * 100)});
  const std::uint64_t bytes = run.simulated.bytes_between_ranks;
  const bool equal = run.predicted_bytes_between_ranks == bytes;
  rows.push_back({"bytes between ranks in all", bytes_text(run.predicted_bytes_between_ranks),
                  bytes_text(bytes), fmt::format("{:>10}", equal ? "equal" : "DIFFERS")});
  return table_text(rows, columns);
}

std::string worker_table(const runtime::ClusterRun& run) {
  const plan::Timeline& predicted = run.compared.predicted.timeline;
  constexpr std::array columns = {TableColumn{Align::left, 8}};
  std::vector<TableRow> rows = {
      {"", "peak", "peak", "GPU memory", "GPU memory", "bytes", "copied", "copied", "copied"},
      {"worker", "stashes", "stash bytes", "predicted", "StarPU's peak", "received", "from GPUs", "from host",
       "to host"}};
  for (std::size_t w = 0; w < run.memory_need.size(); ++w) {
    const runtime::WorkerRecord& worker = run.simulated.workers.at(w);
    const runtime::Copies& copied = run.simulated.copied.at(w);
    rows.push_back({std::to_string(w),
                    pair_text(fmt::to_string(predicted.peak_stashes[w]), fmt::to_string(worker.peak_stashes)),
                    pair_text(bytes_text(predicted.peak_stash_bytes[w]), bytes_text(worker.peak_stash_bytes)),
                    bytes_text(run.memory_need[w]), bytes_text(run.simulated.peak_memory.at(w)),
                    pair_text(bytes_text(predicted.received[w].total().bytes),
                              bytes_text(worker.received.total().bytes)),
                    bytes_text(copied.from_gpus), bytes_text(copied.from_host), bytes_text(copied.to_host)});
  }
  return table_text(rows, columns);
}

std::string cluster_table(const runtime::ClusterRun& run) {
  const plan::Schedule& schedule = run.compared.predicted.planned;
  return fmt::format(
      "{} on {} simulated GPUs, {}, {}\n\n{}\n{}\n{}One figure where prediction and simulation are equal, "
      "\"predicted / simulated\" where they are not.\n",
      schedule.name(), schedule.workers(), counted_text(run.nodes, "node"), counted_text(run.ranks, "rank"),
      whole_table(run), plan::difference_table(run.compared), worker_table(run));
}

int sim(SimOptions options) {
  const std::vector<std::string> kinds = model::network_kinds();
  if (options.per_share && !options.durations.gives_durations())
    throw InputError("--per-share: applies to the times of --durations");
  options.outputs.require_writable();
  runtime::Cluster cluster = read_cluster(options.cluster, options.sharing);
  cluster.ranks_per_node = options.ranks_per_node;
  cluster.gpu_direct = options.gpu_direct;
  if (options.nodes) {
    options.config.set("schedule.workers", std::to_string(*options.nodes * cluster.gpus_per_node), "--nodes");
  }
  const runtime::Config given = with_durations(options, cluster);
  std::vector<fs::path> inputs = inputs_of(given);
  inputs.insert(inputs.end(), {options.cluster, options.durations.files()[0]});
  options.outputs.check(inputs);
  const HeldSignals held;  // until the folder is removed
  const TemporaryFolder folder;
  const SimulatedRequest request = {.config = folder / "config.json",
                                    .cluster = fs::absolute(options.cluster).string(),
                                    .sharing = options.sharing,
                                    .steps = simulated_steps,
                                    .result = folder / "result.json"};
  write_file("sim", request.config, runtime::config_json(given).dump());
  const runtime::Config config = configuration_of(request);
  const runtime::Experiment experiment = runtime::make_experiment(config);
  const int workers = experiment.schedule.workers();
  if (experiment.schedule.copies()) {
    runtime::check_homes_of_gpus(experiment.schedule, runtime::WorkerMap(workers, cluster.ranks(workers)));
    runtime::check_homes(experiment.schedule, runtime::configured_policy(config));
    if (cluster.gpu_direct)
      throw InputError("--gpu-direct: does not apply with copies of stashes, which need host_link");
  }
  plan::Costs costs = experiment.costs;
  costs.workers_of_rank = workers / cluster.ranks(workers);
  costs.messages_pass_hosts = !cluster.gpu_direct;
  runtime::check_gpu_memory(config, experiment, cluster, costs);
  write_file("sim", request.config,
             runtime::config_json(without_plugins(given, experiment, kinds, folder)).dump());
  const nlohmann::json result =
      simulate_ranks(request, cluster, workers, experiment.schedule.copies(), folder);
  const runtime::ClusterRun run =
      runtime::read_cluster_run(config, experiment, cluster, costs, result, simulated_steps);
  print(cluster_table(run));
  options.outputs.write("--report", [&] { return plan::json_text(runtime::cluster_report(run)); });
  return 0;
}

}  // namespace

void add_sim(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("sim", "Run the engine on the simulated GPUs of a cluster (SimGrid)");
  const auto options = std::make_shared<SimOptions>();
  options->config.add_to(*command);
  options->config.add_plugin_to(*command);
  add_option(*command, "--cluster FILE.yaml", options->cluster, "The machine: its nodes, GPUs and links")
      ->required();
  add_option(*command, "--nodes N", options->nodes,
             "Workers on all GPUs of this many nodes; without it, schedule.workers says how many there are",
             whole_number(1, max_nodes));
  add_option(*command, "--ranks-per-node N", options->ranks_per_node,
             "MPI ranks among which the GPUs of each node are divided", whole_number(1, max_ranks_per_node))
      ->capture_default_str();
  add_option(*command, "--sharing WORD", options->sharing,
             "How transfers share ports, on all levels: none or fair; in place of what the file says",
             CLI::IsMember({"none", "fair"}));
  command->add_flag("--gpu-direct", options->gpu_direct,
                    "Messages between ranks go from GPU to GPU: host_link takes no time");
  options->durations.add_durations_to(
      *command,
      "the times of runtime.emulate; with schedule.partition the measured times. A file may also have such "
      "durations by kind of device, as maps with the kinds that `device` names in the file of --cluster");
  command->add_flag("--per-share", options->per_share,
                    "The times of --durations are for 1/W of the model, whatever the number of stages");
  options->outputs.add(*command, "--report FILE.json", "Also write predicted and simulated figures as JSON");
  command->footer(
      "Example:\n"
      "  starpipe sim experiments/emulated.yaml --cluster experiments/clusters/nvlink-infiniband.yaml");
  command->callback([options, &action] { action = [options] { return sim(*options); }; });
}

}  // namespace starpipe::cli
