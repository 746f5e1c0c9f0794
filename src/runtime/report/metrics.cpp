// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/signals.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

std::string metrics_problem(const std::filesystem::path& file, int error) {
  return fmt::format("metrics: cannot write {}: {}", file.string(),
                     std::generic_category().message(error != 0 ? error : EIO));
}

// Returns the step in a line of a file of metrics; nullopt for any other text.
std::optional<int> step_of(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return std::nullopt;
  return json["step"].get<int>();
}

// The beginning of a file of metrics.
struct Record {
  std::uint64_t bytes = 0;
  std::uint64_t hash = hash_start;
  std::string last_line;
};

// Reads the lines of the file from its beginning to `bytes`, or a whole line beyond.
Record read_record(const std::filesystem::path& file, std::uint64_t bytes) {
  Record record;
  std::ifstream stream(file, std::ios::binary);
  std::string line;
  while (record.bytes < bytes && std::getline(stream, line)) {
    if (!stream.eof()) line += '\n';  // the last line of a file may lack it
    record.bytes += line.size();
    record.hash = hash_of(std::string_view(line), record.hash);
    std::swap(line, record.last_line);
  }
  return record;
}

// True if the file is the record of a run up to the position. At the first step any record of a run is
// accepted: its steps are done again.
bool is_record_to(const std::filesystem::path& file, const MetricsPosition& position) {
  if (position.step == 0) return step_of(read_record(file, 1).last_line).value_or(2) <= 1;
  const std::uint64_t end = position.bytes.value_or(0);
  if (end == 0) return false;
  const Record record = read_record(file, end);
  // On a full disk the run may have continued without the lines of its last steps.
  return record.bytes == end && record.hash == position.hash &&
         step_of(record.last_line).value_or(position.step + 1) <= position.step;
}

// Gives the record of steps that are done again a name that no file has. Returns a line that says so.
std::string keep_as_old(const std::filesystem::path& name) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_symlink(name) ? fs::canonical(name) : name;  // a link stays what it is
  const fs::path first = file.string() + ".old";
  fs::path old = first;
  for (int number = 2; fs::exists(fs::symlink_status(old)); ++number)
    old = fmt::format("{}.{}", first.string(), number);
  std::error_code error;
  fs::rename(file, old, error);
  if (error) throw std::runtime_error(metrics_problem(file, error.value()));
  return fmt::format("metrics: {} had metrics of steps that are done again; it is {} now", file.string(),
                     old.string());
}

bool has_content(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) && std::filesystem::file_size(file, error) > 0;
}

}  // namespace

void MetricsFile::check(const std::filesystem::path& file, const std::optional<MetricsPosition>& position) {
  if (is_standard_output(file)) {
    throw InputError("metrics: standard output has the tables of the run; name a file");
  }
  require_writable("metrics", file);
  if (!has_content(file)) return;
  if (!position) {
    throw InputError(
        fmt::format("metrics: {} has content already, perhaps of another run; remove it or name another file",
                    file.string()));
  }
  if (is_record_to(file, *position)) return;
  throw InputError(
      fmt::format("metrics: {} is not the record of this training up to step {}; name another "
                  "file",
                  file.string(), position->step));
}

MetricsFile::MetricsFile(std::filesystem::path file, const std::optional<MetricsPosition>& position)
    : file_(std::move(file)) {
  check(file_, position);
  if (has_content(file_) && position->step == 0) news_ = keep_as_old(file_);
  if (has_content(file_)) {
    bytes_ = position->bytes.value_or(0);
    hash_ = read_record(file_, bytes_).hash;
    std::error_code error;
    std::filesystem::resize_file(file_, bytes_, error);
    if (error) throw std::runtime_error(metrics_problem(file_, error.value()));
  }
  errno = 0;
  stream_.open(file_, std::ios::binary | std::ios::app);
  if (!stream_) throw std::runtime_error(metrics_problem(file_, errno));
}

void MetricsFile::add(const plan::Schedule& schedule, const StepResult& step, int number,
                      std::optional<double> loss, const model::Dataset& data, std::optional<double> pause) {
  nlohmann::ordered_json line = {{"step", number + 1}};
  if (loss) line["loss"] = *loss;
  if (step.gradient_norm) {
    line["gradient_norm"] = *step.gradient_norm;
    line["learning_rate"] = step.learning_rate;
  }
  if (step.clipped) line["clipped"] = true;
  if (step.skipped_for) line["skipped"] = true;
  const std::size_t microbatches = index(schedule.whole_microbatches()) * index(number + 1);  // so far
  line[data.sample_word()] = data.samples_per_microbatch() * microbatches;
  line["seconds"] = step.seconds;
  if (pause) line["checkpoint_seconds"] = *pause;
  double busy = 0;
  for (const JobRecord& job : step.jobs) busy += job.end - job.start;
  const double makespan = std::ranges::max(step.jobs, {}, &JobRecord::end).end -
                          std::ranges::min(step.jobs, {}, &JobRecord::start).start;
  line["bubble_fraction"] = makespan > 0 ? 1 - busy / (schedule.workers() * makespan) : 0;
  line["peak_stash_bytes"] =
      std::ranges::max(step.workers, {}, &WorkerRecord::peak_stash_bytes).peak_stash_bytes;
  write(line.dump());
}

void MetricsFile::add_evaluation(int steps, double loss) {
  write(nlohmann::ordered_json{{"step", steps}, {"validation_loss", loss}}.dump());
}

void MetricsFile::write(const std::string& line) {
  const HeldPipeSignal held;
  unwritten_ += line + '\n';
  errno = 0;
  if (!stream_.is_open()) {
    stream_.clear();
    stream_.open(file_, std::ios::binary | std::ios::in | std::ios::out);  // never a new file
    stream_.seekp(static_cast<std::streamoff>(bytes_));
  }
  stream_ << unwritten_ << std::flush;
  if (stream_) {
    bytes_ += unwritten_.size();
    hash_ = hash_of(std::string_view(unwritten_), hash_);
    unwritten_.clear();
    if (!problem_.empty()) news_ = fmt::format("metrics: {} has all lines again", file_.string());
    problem_.clear();
    return;
  }
  if (problem_.empty()) {  // the first reason counts: a pipe that has failed cannot be opened as a file
    problem_ = metrics_problem(file_, errno);
    news_ = problem_ + "; training continues, and each step tries again";
  }
  stream_.close();                                       // which writes what is left in its buffer, if it can
  std::error_code ignored;                               // the first error counts
  std::filesystem::resize_file(file_, bytes_, ignored);  // programs that read the file want whole lines
}

}  // namespace starpipe::runtime
