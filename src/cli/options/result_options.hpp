// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/options/common_options.hpp"
#include "plan/formats/results.hpp"

namespace starpipe::cli {

/// Form and destination of a result: --format, --json, -o, --html, and where it is added --width.
class ResultOptions {
 public:
  void add_to(CLI::App& command);
  /// For commands whose text has a drawing.
  void add_width_to(CLI::App& command);
  /// More outputs, which the command adds and writes.
  OutputFiles& outputs() { return outputs_; }
  [[nodiscard]] const OutputFiles& outputs() const { return outputs_; }
  /// Checks all outputs of the command that reads `inputs`. Call before the work is done. Throws InputError
  /// as OutputFiles does, and also if the suffix of -o does not match the format, or the format has no
  /// --width.
  void check(std::span<const std::filesystem::path> inputs) const;
  /// True if the result is text for people.
  [[nodiscard]] bool is_text() const { return format() == "text"; }
  /// Writes the result to standard output or to the file of -o. `text` makes the text format. `more`: an
  /// object whose members are added to the JSON format, and shown on the page. A reordering is part of text
  /// and JSON; with the other formats, a line on standard error says so.
  void show(const plan::PredictedRun& run, const std::function<std::string()>& text,
            const nlohmann::ordered_json& more = nlohmann::ordered_json::object()) const;
  /// Drawing and table: as wide as --width, or the terminal, in colour on a terminal; 200 columns wide
  /// without colour in files and pipes.
  [[nodiscard]] std::string drawn(const plan::PredictedRun& run) const;

 private:
  [[nodiscard]] std::string format() const;

  std::optional<std::string> format_;
  bool json_ = false;
  std::optional<std::string> file_;
  OutputFiles outputs_;
  std::optional<int> width_;
};

}  // namespace starpipe::cli
