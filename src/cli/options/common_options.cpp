// SPDX-License-Identifier: Apache-2.0
#include "cli/options/common_options.hpp"

#include <set>
#include <system_error>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "base/files.hpp"
#include "model/safetensors_index.hpp"

namespace starpipe::cli {
namespace {

namespace fs = std::filesystem;

fs::path resolved(const fs::path& file) {
  std::error_code ignored;
  if (is_standard_output(file)) return "/dev/stdout";
  return fs::weakly_canonical(fs::absolute(target_of(file), ignored), ignored);
}

}  // namespace

void check_outputs(std::span<const OutputFile> outputs, std::span<const fs::path> inputs) {
  std::set<fs::path> seen;
  for (const fs::path& input : inputs) {
    if (!input.empty()) seen.insert(resolved(input));
  }
  for (const OutputFile& output : outputs) {
    if (!output.file || output.file->empty()) continue;
    if (!output.suffix.empty()) require_suffix(output.option, *output.file, {&output.suffix, 1});
    if (seen.insert(resolved(*output.file)).second) continue;
    throw InputError(fmt::format("{}: {} is also an input of the run or the file of another option",
                                 output.option, output.file->string()));
  }
}

std::vector<fs::path> inputs_of(const runtime::Config& config) {
  std::vector<fs::path> files = {config.source,
                                 config.data.path,
                                 config.data.validation,
                                 config.model.init.value_or(""),
                                 config.schedule.file.value_or(""),
                                 config.schedule.profile_file};
  if (config.runtime.emulate) files.emplace_back(config.runtime.emulate->links_file);
  if (config.model.init && model::is_safetensors_index(*config.model.init)) {
    try {
      for (const auto& [file, tensors] : model::read_safetensors_index(*config.model.init))
        files.push_back(file);
    } catch (const InputError&) {  // the run refuses an index that it cannot read
    }
  }
  files.insert(files.end(), config.schedule.plugins.begin(), config.schedule.plugins.end());
  return files;
}

}  // namespace starpipe::cli
