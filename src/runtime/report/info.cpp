// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/info.hpp"

#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <mpi.h>
#include <starpu.h>

#include "runtime/host/core_share.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/host/product_library.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/version.hpp"

namespace starpipe::runtime {

namespace {

nlohmann::ordered_json null_if_empty(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

// Returns this rank among those that the launcher has started; null without a launcher. How many workers each
// rank has is not known here, so that each counts as having one.
nlohmann::ordered_json describe_rank() {
  if (!launcher_rank()) return nullptr;
  const StartedMpi library([](const std::string& line) { print_message("starpipe: " + line + "\n"); });
  const Mpi mpi;
  const WorkerMap one_each(mpi.ranks(), mpi.ranks());
  const RankLocation location = own_location(mpi, one_each, divide_host(mpi, one_each), {});
  return {{"rank", mpi.rank()},          {"ranks", mpi.ranks()},
          {"binding", location.binding}, {"bound_by", location.bound_by},
          {"cores", location.cores},     {"transport", null_if_empty(location.transport)}};
}

}  // namespace

nlohmann::ordered_json runtime_facts() {
  const Hardware hardware = find_hardware();
  nlohmann::ordered_json quota;
  if (std::isfinite(hardware.quota.cores)) quota = hardware.quota.cores;
  return {{"versions", versions()},
          {"machine",
           {{"name", hardware.machine},
            {"processor", hardware.cpu},
            {"cores", hardware.cores},
            {"cpu_quota", quota},
            {"binding", hardware.binding},
            {"product_kernels", product_kernels_text()}}},
          {"rank", describe_rank()},
          {"starpu_max_cpu_workers", STARPU_MAXCPUS},
#ifdef STARPU_USE_CUDA
          {"starpu_cuda", true},
#else
          {"starpu_cuda", false},
#endif
#ifdef STARPU_USE_FXT
          {"starpu_fxt", true},
#else
          {"starpu_fxt", false},
#endif
          {"cuda", built_with_cuda()},
          {"cuda_devices", cuda_devices()},
          {"policies", policy_names()},
          {"layers", model::layer_kinds()}};
}

std::string runtime_text(const nlohmann::ordered_json& facts) {
  const auto text = [](const nlohmann::ordered_json& value) { return value.get<std::string>(); };
  const auto list = [](const nlohmann::ordered_json& value) {
    return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ", "));
  };
  const auto yes_or_no = [](const nlohmann::ordered_json& value) { return value.get<bool>() ? "yes" : "no"; };
  std::vector<TableRow> rows;
  for (const auto& [name, value] : facts["versions"].items()) rows.push_back({name, text(value)});
  const auto& machine = facts["machine"];
  const std::string processor = text(machine["processor"]);
  rows.push_back({"machine", fmt::format("{}, {}, {} cores (PUs {})", text(machine["name"]),
                                         processor.empty() ? "unknown processor" : processor,
                                         machine["cores"].get<int>(), text(machine["binding"]))});
  if (const auto& cores = machine["cpu_quota"]; !cores.is_null())
    rows.push_back({"CPU quota", CpuQuota{.cores = cores.get<double>(), .group = {}}.text()});
  rows.push_back({"product kernels", text(machine["product_kernels"])});
  if (const auto& rank = facts["rank"]; !rank.is_null()) {
    rows.push_back(
        {"rank", fmt::format("{} of {}; on PUs {} in a run with equally many workers per rank",
                             rank["rank"].get<int>(), rank["ranks"].get<int>(), text(rank["binding"]))});
    if (!rank["transport"].is_null()) rows.push_back({"messages over", text(rank["transport"])});
  }
  rows.push_back(
      {"StarPU has", fmt::format("up to {} CPU workers per process, CUDA {}, FxT traces {}", STARPU_MAXCPUS,
                                 yes_or_no(facts["starpu_cuda"]), yes_or_no(facts["starpu_fxt"]))});
  if (!built_with_cuda()) {
    rows.push_back({"GPUs", "not looked for: built without STARPIPE_WITH_CUDA"});
  } else if (facts["cuda_devices"].empty()) {
    rows.push_back({"GPUs", "none"});
  }
  for (const auto& device : facts["cuda_devices"]) rows.push_back({"GPU", text(device)});
  rows.push_back({"policies", list(facts["policies"])});
  rows.push_back({"layers", list(facts["layers"])});
  return table_text(rows, info_columns);
}

namespace {

std::string starpu_version() {
  int major = 0;
  int minor = 0;
  int release = 0;
  starpu_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// Returns the first line of the MPI library's description, which may be a page long.
std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string line(text.data());
  line = line.substr(0, line.find('\n'));
  for (std::size_t at = 0; (at = line.find('\t', at)) != std::string::npos;) line[at] = ' ';
  return line;
}

}  // namespace

nlohmann::ordered_json versions() {
  return {{"starpipe", version},
          {"commit", commit()},
          {"compiler", compiler},
          {"build_type", build_type},
          {"starpu", starpu_version()},
          {"mpi", mpi_version()},
          {"products", product_library()},
          {"hwloc", fmt::format("{}.{}.{}", HWLOC_API_VERSION >> 16, (HWLOC_API_VERSION >> 8) & 0xff,
                                HWLOC_API_VERSION & 0xff)}};
}

std::string rank_table(std::span<const RankLocation> ranks) {
  constexpr std::array columns = {TableColumn{Align::right}, TableColumn{Align::left},
                                  TableColumn{Align::left},  TableColumn{Align::right},
                                  TableColumn{Align::left},  TableColumn{Align::left},
                                  TableColumn{Align::left}};
  std::vector<TableRow> rows = {{"rank", "machine", "PUs", "cores", "bound by", "workers", "MPI's thread"}};
  for (const RankLocation& rank : ranks) {
    const std::string_view bound = rank.bound ? "each bound to a core" : "not bound to cores";
    rows.push_back({std::to_string(rows.size() - 1), rank.machine, rank.binding, std::to_string(rank.cores),
                    rank.bound_by.empty() ? "nobody" : rank.bound_by,
                    fmt::format("{}, {}", rank.workers, bound), rank.mpi_thread});
  }
  return table_text(rows, columns);
}

nlohmann::ordered_json ranks_json(std::span<const RankLocation> ranks) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const auto& [machine, binding, bound_by, cores, workers, bound, mpi_thread, logical, devices,
                    transport, products] : ranks) {
    all.push_back({{"machine", machine},
                   {"binding", binding},
                   {"bound_by", bound_by},
                   {"cores", cores},
                   {"workers", workers},
                   {"workers_bound", bound},
                   {"mpi_thread", mpi_thread},
                   {"logical_workers", logical},
                   {"devices", devices},
                   {"transport", null_if_empty(transport)},
                   {"products", null_if_empty(products)}});
  }
  return all;
}

}  // namespace starpipe::runtime
