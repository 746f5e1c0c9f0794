// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/training_table.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "base/table.hpp"
#include "plan/formats/explanation.hpp"

namespace starpipe::runtime {
namespace {

// "x" when prediction and measurement agree, "x / y" when they do not.
std::string predicted_and_measured(const std::string& predicted, const std::string& measured) {
  return predicted == measured ? predicted : predicted + " / " + measured;
}

// Predicted and measured values of a whole step. Cells of the last column are padded so that signs and
// decimal points line up.
std::string whole_run_table(const plan::Timeline& predicted, const plan::Timeline& measured,
                            const TrainRecord& record) {
  constexpr std::array columns = {TableColumn{Align::left, 28}, TableColumn{Align::right, 10},
                                  TableColumn{Align::right, 10}, TableColumn{Align::left}};
  const auto milliseconds = [](double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); };
  std::vector<TableRow> rows = {
      {"", "predicted", "measured", "difference"},
      {"makespan", milliseconds(predicted.makespan), milliseconds(measured.makespan),
       fmt::format("{:>10}", difference_text(measured.makespan / predicted.makespan - 1))}};
  if (measured.gradients_summed) {
    rows.push_back(
        {"with gradients summed", milliseconds(*predicted.gradients_summed),
         milliseconds(*measured.gradients_summed),
         fmt::format("{:>10}",
                     difference_text(*measured.gradients_summed / *predicted.gradients_summed - 1))});
  }
  rows.push_back(
      {"bubble fraction", percent_text(predicted.bubble_fraction), percent_text(measured.bubble_fraction),
       fmt::format("{:>+4.1f} points", (measured.bubble_fraction - predicted.bubble_fraction) * 100)});
  if (!record.clipped.empty())
    rows.push_back({"gradients clipped", "",
                    fmt::format("{} of {}", record.clipped.size(), record.step_seconds.size())});
  if (!record.skipped.empty())
    rows.push_back(
        {"updates skipped", "", fmt::format("{} of {}", record.skipped.size(), record.step_seconds.size())});
  if (record.checkpoints && !record.checkpoints->pauses.empty()) {
    double longest = 0;
    for (const CheckpointPause& pause : record.checkpoints->pauses)
      longest = std::max(longest, pause.seconds);
    rows.push_back({"longest pause of a checkpoint", "", milliseconds(longest)});
  }
  if (record.rank_bytes_known) {
    const bool equal = record.rank_bytes_predicted == record.rank_bytes_measured;
    rows.push_back({"bytes between ranks in all", bytes_text(record.rank_bytes_predicted),
                    bytes_text(record.rank_bytes_measured),
                    fmt::format("{:>10}", equal ? "equal" : "DIFFERS")});
  }
  return table_text(rows, columns);
}

std::string worker_table(const plan::Timeline& predicted, std::span<const WorkerRecord> measured) {
  constexpr std::array columns = {TableColumn{Align::left, 8},   TableColumn{Align::right, 12},
                                  TableColumn{Align::right, 20}, TableColumn{Align::right, 14},
                                  TableColumn{Align::right, 14}, TableColumn{Align::right, 14}};
  std::vector<TableRow> rows = {{"", "peak", "peak"}, {"worker", "stashes", "activation bytes"}};
  for (const plan::TransferKind& kind : plan::transfer_kinds) {
    if (!kind.always_shown) continue;
    rows[0].emplace_back(kind.label);
    rows[1].emplace_back("received");
  }
  for (std::size_t w = 0; w < measured.size(); ++w) {
    const WorkerRecord& worker = measured[w];
    TableRow& row =
        rows.emplace_back(TableRow{std::to_string(w),
                                   predicted_and_measured(fmt::to_string(predicted.peak_stashes[w]),
                                                          fmt::to_string(worker.peak_stashes)),
                                   predicted_and_measured(bytes_text(predicted.peak_stash_bytes[w]),
                                                          bytes_text(worker.peak_stash_bytes))});
    for (const plan::TransferKind& kind : plan::transfer_kinds) {
      if (!kind.always_shown) continue;
      row.push_back(predicted_and_measured(fmt::to_string((predicted.received[w].*kind.member).count),
                                           fmt::to_string((worker.received.*kind.member).count)));
    }
  }
  return table_text(rows, columns);
}

}  // namespace

std::string training_table(const plan::ComparedRun& run, std::span<const WorkerRecord> workers,
                           const TrainRecord& record) {
  const plan::Timeline& predicted = run.predicted.timeline;
  std::string text =
      whole_run_table(predicted, run.measured.timeline, record) + "\n" + plan::difference_table(run) + "\n" +
      plan::idle_table(run) + "\n" + worker_table(predicted, workers) +
      "One figure where prediction and measurement are equal, \"predicted / measured\" where they "
      "are not.\n";
  if (record.gpus) text += to_text(record.gpus->memory) + to_text(record.gpus->copies);
  return text;
}

}  // namespace starpipe::runtime
