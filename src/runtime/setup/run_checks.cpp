// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/run_checks.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <starpu.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

namespace {

void require_gpu_support(bool needs_gpu) {
  if (!built_with_cuda()) {
    throw InputError("runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
  }
  if (needs_gpu && cuda_devices().empty()) throw InputError("runtime.device: cuda: no CUDA device found");
}

}  // namespace

void check_device(const Config& config) {
  if (config.runtime.uses_gpus()) require_gpu_support(true);
}

void check_rank_device(const Config& config) {
  if (!config.runtime.uses_gpus()) return;
  require_gpu_support(!config.runtime.is_mixed());
  if (cuda_devices().empty()) return;
  if (const std::string problem = starpu_problem(); !problem.empty()) throw InputError(problem);
}

std::string starpu_problem() {
#ifndef STARPU_NON_BLOCKING_DRIVERS
  return "runtime.device: cuda: StarPU was built with blocking drivers, which wait for the GPU after each "
         "task; run STARPIPE_GPUS=1 scripts/setup and build again, or bring a StarPU without them";
#else
  // StarPU would follow the variable instead of the session's choice of GPUs.
  if (environment("STARPU_WORKERS_CUDAID")) {
    return "STARPU_WORKERS_CUDAID: unset it; starpipe divides the GPUs that CUDA_VISIBLE_DEVICES shows";
  }
  return {};
#endif
}

void check_kernels(const Config& config, const model::Network& network) {
  if (!config.runtime.uses_gpus()) return;
  const auto has_kernels = [](const model::Stage& stage) {
    return std::ranges::all_of(
               stage.ops(),
               [](const model::StageOp& op) { return op.layer == nullptr || op.layer->cuda() != nullptr; }) &&
           (stage.loss() == nullptr || stage.loss()->cuda() != nullptr);
  };
  const auto check = [&](const std::vector<model::Stage>& stages) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (has_kernels(stages[s])) continue;
      throw InputError(fmt::format(
          "runtime.device: cuda: a layer of stage {} has no CUDA kernels for its shape (attention "
          "has them for heads of at most 128 columns, and 2,097,120 tokens)",
          s));
    }
  };
  check(network.stages);
  std::ranges::for_each(network.slices, check);
}

namespace {

constexpr std::string_view prefix = "STARPU_";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// True for the limits of main memory, with or without a NUMA node: LIMIT_CPU_NUMA_MEM, LIMIT_CPU_NUMA_0_MEM.
bool limits_main_memory(std::string_view name) {
  return name.starts_with("LIMIT_CPU_") && name.ends_with("MEM");
}

// True for the whole numbers that StarPU reads at each start, of workers, threads, memory, messages,
// priorities and measurements. It aborts if one of them is not a number, or is negative.
bool is_whole_number(std::string_view name) {
  constexpr std::array names = {"NCPU",
                                "NCUDA",
                                "CUDA_PIPELINE",
                                "WORKERS_NOBIND",
                                "MAIN_THREAD_CPUID",
                                "MAIN_THREAD_COREID",
                                "MPI_THREAD_CPUID",
                                "MPI_THREAD_COREID",
                                "MPI_NOBIND",
                                "MPI_STATS",
                                "MPI_CACHE",
                                "MPI_CACHE_STATS",
                                "MPI_COOP_SENDS",
                                "MPI_PRIORITIES",
                                "MPI_NDETACHED_SEND",
                                "COMM_STATS",
                                "MIN_PRIO",
                                "MAX_PRIO",
                                "PREFETCH",
                                "CALIBRATE",
                                "CALIBRATE_MINIMUM",
                                "BUS_CALIBRATE",
                                "HISTORY_MAX_ERROR",
                                "USE_NUMA",
                                "GLOBAL_ARBITER",
                                "CATCH_SIGNALS",
                                "SILENT",
                                "RAND_SEED",
                                "FXT_TRACE",
                                "GENERATE_TRACE",
                                "TRACE_BUFFER_SIZE",
                                "WATCHDOG_CRASH",
                                "MINIMUM_AVAILABLE_MEM",
                                "TARGET_AVAILABLE_MEM",
                                "TARGET_CLEAN_BUFFERS",
                                "MINIMUM_CLEAN_BUFFERS",
                                "LIMIT_MAX_SUBMITTED_TASKS",
                                "LIMIT_MIN_SUBMITTED_TASKS"};
  const bool limits_gpus = name.starts_with("LIMIT_CUDA_") && name.ends_with("MEM");
  return limits_gpus || std::ranges::find(names, name) != names.end();
}

// StarPU's own way of reading: blanks before the number are fine, and an empty text is 0.
bool is_whole(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text.c_str(), &end, 10);
  return errno == 0 && *end == '\0' && value >= 0 && value <= std::numeric_limits<int>::max();
}

// Returns the largest number of a list of numbers of at most nine digits, with blanks between them; nullopt
// if the text is not such a list. `ranges`: the list may also have ranges ("4-7", "4-"), and commas between
// its parts.
std::optional<int> largest_of_list(std::string_view text, bool ranges) {
  std::optional<int> largest;
  const auto skip = [&text](auto&& is_skipped) {
    std::size_t count = 0;
    while (count < text.size() && is_skipped(text[count])) ++count;
    text.remove_prefix(count);
    return count;
  };
  const auto is_blank = [](char c) { return c == ' '; };
  // Takes a number; returns how many digits it has.
  const auto take_number = [&] {
    const std::string_view begin = text;
    const std::size_t digits = skip(is_digit);
    int number = 0;
    std::from_chars(begin.data(), begin.data() + digits, number);
    largest = std::max(largest.value_or(0), number);
    return digits;
  };
  constexpr std::size_t max_digits = 9;
  for (skip(is_blank); !text.empty(); skip(is_blank)) {
    const std::size_t digits = take_number();
    if (digits == 0 || digits > max_digits) return std::nullopt;
    if (ranges && text.starts_with('-')) {
      text.remove_prefix(1);
      if (take_number() > max_digits) return std::nullopt;
    }
    if (ranges && text.starts_with(',')) {
      text.remove_prefix(1);
    } else if (!text.empty() && !is_blank(text.front())) {
      return std::nullopt;
    }
  }
  return largest;
}

// Returns words that say which values the variable may have if `value` is refused; nullopt if it is accepted.
std::optional<std::string_view> expected(std::string_view name, const std::string& value) {
  if (name == "WORKERS_CPUID" || name == "WORKERS_COREID") {
    if (!largest_of_list(value, true)) return "numbers of cores, such as '0 2 4-7'";
  } else if (name == "WORKERS_CUDAID") {
    if (!largest_of_list(value, false)) return "numbers of GPUs with blanks between them, such as '0 1'";
  } else if (name == "NTHREADS_PER_CORE") {  // the hardware has a limit, and StarPU aborts above it
    if (value != "1") return "1 (starpipe chooses the cores of its workers)";
  } else if (name == "MAIN_THREAD_BIND" || name == "RESERVE_NCPU") {  // would take the core of a worker
    if (value != "0") return "0 (starpipe chooses the cores of its workers)";
  } else if (name == "NCPUS") {
    return "it to be unset (STARPU_NCPU is the limit that is kept)";
  } else if (name == "DISABLE_KERNELS") {
    if (value != "0") return "0 (without kernels nothing is trained)";
  } else if (name == "MPI_DRIVER_CALL_FREQUENCY") {  // workers would poll, and none would run tasks
    if (value != "0") return "0 (StarPU-MPI's thread polls for messages)";
  } else if (name == "HOSTNAME") {  // part of the names of files
    if (value.find('/') != std::string::npos) return "a name without '/'";
  } else if (name == "MPI_NREADY_PROCESS" || name == "NWORKER_PER_CUDA") {  // with 0 nothing would ever run
    if (!is_whole(value) || std::strtol(value.c_str(), nullptr, 10) == 0)
      return "a whole number from 1 to 2147483647";
  } else if (name == "HWLOC_INPUT") {
    return "it to be unset (starpipe chooses cores by the topology of this host)";
  } else if (name == "MPI_FAKE_RANK" || name == "MPI_FAKE_SIZE" || name == "MPI_HOSTNAMES") {
    return "it to be unset (starpipe runs on real ranks)";
  } else if (limits_main_memory(name)) {
    return "it to be unset (a run that needs more would wait indefinitely; runtime.memory_limit refuses it)";
  } else if (is_whole_number(name) && !is_whole(value)) {
    return "a whole number from 0 to 2147483647";
  }
  return std::nullopt;
}

// Refuses numbers of cores that the host does not have: StarPU would crash if its main thread or its MPI
// thread is to run there, and would bind workers to other cores. Refuses two variables that name the cores of
// the same threads: StarPU would use one of them.
void check_cores(const Topology& host) {
  const int pus = host.pus();
  const int cores = host.cores(host.allowed());
  for (const char* threads : {"WORKERS", "MAIN_THREAD", "MPI_THREAD"}) {
    const std::string by_pu = fmt::format("{}{}_CPUID", prefix, threads);
    const std::string by_core = fmt::format("{}{}_COREID", prefix, threads);
    require_input(!environment(by_pu.c_str()) || !environment(by_core.c_str()), by_core,
                  fmt::format("unset it or {}: both say where the same threads run", by_pu));
    for (const auto& [name, count] : {std::pair(by_pu, pus), std::pair(by_core, cores)}) {
      const std::string value = environment(name.c_str()).value_or("");
      const int largest = largest_of_list(value, true).value_or(0);
      require_input(largest < count, name,
                    fmt::format("expected numbers below {}, as this host has {}, got '{}'", count,
                                counted_text(count, name == by_pu ? "hardware thread" : "core"), value));
    }
  }
}

}  // namespace

void check_starpu_variables(const Topology& host) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t end_of_name = text.find('=');
    if (!text.starts_with(prefix) || end_of_name == std::string_view::npos) continue;
    const std::string value(text.substr(end_of_name + 1));
    const auto wanted = expected(text.substr(prefix.size(), end_of_name - prefix.size()), value);
    require_input(!wanted, text.substr(0, end_of_name),
                  fmt::format("expected {}, got '{}'", wanted.value_or(""), value));
  }
  check_cores(host);
}

}  // namespace starpipe::runtime
