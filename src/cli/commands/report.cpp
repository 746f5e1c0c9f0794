// SPDX-License-Identifier: Apache-2.0
#include <list>

#include "cli/commands/subcommand.hpp"
#include "plan/drawing/page.hpp"
#include "plan/formats/report_file.hpp"

namespace starpipe::cli {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> files;
  OutputFiles output;
};

int report(const ReportOptions& options) {
  options.output.check(options.files);
  options.output.require_writable();
  plan::require_page("report");
  std::list<plan::ReportFile> read;
  std::vector<const plan::ReportFile*> files;
  for (const std::filesystem::path& file : options.files)
    files.push_back(&read.emplace_back(plan::read_report(file)));
  options.output.write("-o", [&] { return plan::page_of(files); });
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "report", "Make a page for a browser from reports: timelines, causes, curves, tables");
  const auto options = std::make_shared<ReportOptions>();
  add_option(*command, "reports REPORT.json", options->files,
             "Reports of `train` and `sim`, files of `compare -o`, or schedules: JSON of `schedule show`, "
             "`simulate`, `search` and `periodic`, CSV of PyTorch. Several are shown side by side")
      ->required();
  options->output.add(*command, "-o,--output FILE.html", "The page, one file that needs no network")
      ->required();
  command->footer(
      "Example:\n"
      "  starpipe report report.json -o report.html");
  command->callback([options, &action] { action = [options] { return report(*options); }; });
}

}  // namespace starpipe::cli
