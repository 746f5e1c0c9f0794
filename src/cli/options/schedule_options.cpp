// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "cli/options/options.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedules/finer.hpp"

namespace starpipe::cli {
namespace {

constexpr int max_shards = 1 << 10;

}  // namespace

void add_schedule_option(CLI::App& command, plan::ScheduleOptions& options, const std::string& help) {
  const auto read = [&options](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const auto equals = word.find('=');
      std::errc error{};
      const auto value = parse_number<int>(equals == std::string::npos ? "" : word.substr(equals + 1), error);
      if (!value || error != std::errc{} || equals == 0)
        throw CLI::ValidationError("--option",
                                   fmt::format("expected NAME=NUMBER, such as waves=2, got '{}'", word));
      if (!options.emplace(word.substr(0, equals), *value).second)
        throw CLI::ValidationError("--option", fmt::format("{} is given twice", word.substr(0, equals)));
    }
  };
  repeated(command.add_option_function<std::vector<std::string>>("--option", read, help))
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

void add_memory_options(CLI::App& command, std::vector<int>& memory_limits, bool& recompute) {
  add_option(
      command, "--memory-limit M,...", memory_limits,
      "The largest number of stashes that a worker may hold, counted like the peaks in the output: one "
      "number for all, or one for each worker. A schedule whose order needs no more keeps its order. "
      "Otherwise it runs in another order, one that the schedule makes for this limit or the order of "
      "the bounded discipline, and the output says so. The discipline greedy keeps no limit and is "
      "refused",
      whole_number(1, std::numeric_limits<int>::max()));
  command.add_flag("--recompute", recompute,
                   "F keeps only the stage's inputs, and B computes F again, so its time includes F's");
}

void TensorOptions::add_to(CLI::App& command) {
  CLI::Option* const tensor = add_option(
      command, "--tensor T", shards_,
      "Shards (T) into which each stage is cut. Each of them adds the outputs of all shards of the stage "
      "before. Durations and bytes that are given are of a stage; a shard has 1/T of the times",
      whole_number(1, max_shards));
  add_option(
      command, "--tensor-workers D", workers_each_,
      "Workers (D) that each worker becomes with --tensor: where the schedule has worker v, shard k is "
      "on worker D v + k mod D (default: T)",
      whole_number(1, max_shards))
      ->needs(tensor);
}

void refuse_tensor(CLI::App& command, const std::string& reason) {
  command
      .add_option_function<std::string>(
          "--tensor", [reason](const std::string&) { throw InputError("--tensor: " + reason); })
      ->group("");  // not in the help
}

void TensorOptions::apply(plan::Schedule& schedule, plan::Costs& costs) const {
  const int workers_each = workers_each_.value_or(shards_);
  if (workers_each > shards_) {
    throw InputError(
        fmt::format("--tensor-workers: {} workers are more than the {} shards", workers_each, shards_));
  }
  plan::TensorFold fold =
      plan::tensor_fold(schedule, costs, {.shards = shards_, .workers_each = workers_each});
  schedule = std::move(fold.schedule);
  costs = std::move(fold.costs);
}

}  // namespace starpipe::cli
