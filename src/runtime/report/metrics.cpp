// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

std::runtime_error cannot_write_metrics(const std::filesystem::path& file, int error) {
  return std::runtime_error(fmt::format("--metrics: cannot write {}: {}", file.string(),
                                        std::generic_category().message(error != 0 ? error : EIO)));
}

}  // namespace

StepMetrics metrics_of(const plan::Schedule& schedule, const StepResult& step, int number,
                       std::optional<double> loss, std::uint64_t samples_of_step) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = loss;
  metrics.gradient_norm = step.gradient_norm;
  metrics.learning_rate = step.learning_rate;
  metrics.clipped = step.clipped;
  metrics.skipped = step.skipped_for.has_value();
  metrics.samples = samples_of_step * static_cast<std::uint64_t>(number + 1);
  metrics.seconds = step.seconds;
  double busy = 0;
  for (const JobRecord& job : step.jobs) busy += job.end - job.start;
  const double makespan = std::ranges::max_element(step.jobs, {}, &JobRecord::end)->end -
                          std::ranges::min_element(step.jobs, {}, &JobRecord::start)->start;
  metrics.bubble_fraction = makespan > 0 ? 1 - busy / (schedule.workers() * makespan) : 0;
  for (const WorkerRecord& worker : step.workers)
    metrics.peak_stash_bytes = std::max(metrics.peak_stash_bytes, worker.peak_stash_bytes);
  return metrics;
}

void MetricsFile::require_new(const std::filesystem::path& file) {
  if (is_standard_output(file)) {
    throw InputError("--metrics: standard output has the tables of the run; name a file");
  }
  require_writable("--metrics", file);
  std::error_code error;
  if (std::filesystem::is_regular_file(file, error) && std::filesystem::file_size(file, error) > 0) {
    throw InputError(fmt::format(
        "--metrics: {} has content already, perhaps of another run; remove it or name another file",
        file.string()));
  }
}

MetricsFile::MetricsFile(std::filesystem::path file) : file_(std::move(file)) {
  require_new(file_);
  errno = 0;
  stream_.open(file_, std::ios::binary | std::ios::app);
  if (!stream_) throw cannot_write_metrics(file_, errno);
}

void MetricsFile::add(const StepMetrics& metrics, const std::string& sample_word) {
  nlohmann::ordered_json line = {{"step", metrics.step + 1}};
  if (metrics.loss) line["loss"] = *metrics.loss;
  if (metrics.gradient_norm) {
    line["gradient_norm"] = *metrics.gradient_norm;
    line["learning_rate"] = metrics.learning_rate;
  }
  if (metrics.clipped) line["clipped"] = true;
  if (metrics.skipped) line["skipped"] = true;
  line[sample_word] = metrics.samples;
  line["seconds"] = metrics.seconds;
  line["bubble_fraction"] = metrics.bubble_fraction;
  line["peak_stash_bytes"] = metrics.peak_stash_bytes;
  errno = 0;
  stream_ << line.dump() << '\n' << std::flush;
  if (!stream_) throw cannot_write_metrics(file_, errno);
}

}  // namespace starpipe::runtime
