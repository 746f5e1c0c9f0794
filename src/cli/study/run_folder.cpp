// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>

#include "base/files.hpp"
#include "cli/study/study.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/version.hpp"

namespace starpipe::cli {
namespace {

namespace fs = std::filesystem;

fs::path record_of(const fs::path& folder) { return folder / "run.json"; }

/// Returns the last line of the log that is a message of starpipe; empty if there is none.
std::string last_message(const fs::path& log) {
  std::error_code error;
  if (!fs::exists(log, error)) return {};
  std::istringstream lines(read_file(log));
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("starpipe: ")) last = line;
  }
  return last;
}

/// True if the run has written each of the study's outputs besides its report.
bool has_outputs(const Study& study, const fs::path& folder) {
  std::error_code error;
  return std::ranges::all_of(study_outputs, [&](const StudyOutput& output) {
    return std::ranges::count(study.outputs, output.name) == 0 || fs::exists(folder / output.file, error);
  });
}

}  // namespace

fs::path folder_of(const StudyRun& run, const fs::path& folder) { return folder / "runs" / run.name; }
fs::path config_of(const fs::path& folder) { return folder / "config.yaml"; }
fs::path log_of(const fs::path& folder) { return folder / "log.txt"; }

RunOutcome read_outcome(const Study& study, const fs::path& folder) {
  std::error_code error;
  RunOutcome outcome;
  const bool has_report = fs::is_regular_file(folder / report_file, error);
  const bool has_record = fs::is_regular_file(record_of(folder), error);
  // A sweep writes the record last. A newer report is of a run that was started by hand since then, and the
  // record tells nothing about it.
  const bool by_hand = has_report && has_record &&
                       fs::last_write_time(folder / report_file) > fs::last_write_time(record_of(folder));
  const bool is_recorded = has_record && !by_hand;
  if (is_recorded) {
    // A damaged record says nothing; the report counts.
    const nlohmann::json record = nlohmann::json::parse(read_file(record_of(folder)), nullptr, false);
    const auto value = [&](const char* name) {
      const bool is_plain = record.is_object() && record.contains(name) && record.at(name).is_primitive();
      return is_plain ? record.at(name) : nlohmann::json();  // others are copied by recursion
    };
    if (value("seconds").is_number()) outcome.seconds = value("seconds");
    if (value("problem").is_string()) outcome.problem = value("problem");
    for (const char* name : {"starpipe", "commit", "machine", "processor", "cores"}) {
      if (!value(name).is_null()) outcome.origin[name] = value(name);
    }
  }
  if (outcome.problem.empty() && has_report && !nlohmann::json::accept(read_file(folder / report_file)))
    outcome.problem = fmt::format("its {} is damaged", report_file);
  if (!outcome.problem.empty()) {
    outcome.state = RunState::failed;
  } else if (has_report && (is_recorded || has_outputs(study, folder))) {
    outcome.state = RunState::done;
  }
  return outcome;
}

RunLock lock_run(const fs::path& folder) {
  const auto refuse = [&](int problem) {
    throw InputError(
        fmt::format("cannot write {}: {}", folder.string(), std::generic_category().message(problem)));
  };
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse(error.value());
  RunLock lock(std::fopen((folder / "lock").c_str(), "a+e"), std::fclose);
  if (!lock) refuse(errno);
  if (::flock(::fileno(lock.get()), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) lock.reset();
  return lock;
}

void prepare_folder(const fs::path& folder, std::string_view config_text) {
  for (const fs::path& file : {record_of(folder), log_of(folder), folder / report_file}) fs::remove(file);
  for (const StudyOutput& output : study_outputs) fs::remove(folder / output.file);
  write_file("sweep", config_of(folder), config_text);
}

void record_end(const fs::path& folder, const std::vector<std::string>& command, const std::string& failure,
                double seconds) {
  const runtime::Hardware hardware = runtime::find_hardware();
  nlohmann::ordered_json record = {{"command", command},        {"starpipe", version},
                                   {"commit", commit()},        {"machine", hardware.machine},
                                   {"processor", hardware.cpu}, {"cores", hardware.cores},
                                   {"seconds", seconds}};
  std::error_code error;
  if (!failure.empty()) {
    const std::string message = last_message(log_of(folder));
    record["problem"] = message.empty() ? failure : message;
  } else if (!fs::is_regular_file(folder / report_file, error)) {
    record["problem"] = "it wrote no report";
  }
  write_file("sweep", record_of(folder),
             record.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace starpipe::cli
