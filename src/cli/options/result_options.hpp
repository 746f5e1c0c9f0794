// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::cli {

/// Form and destination of a result: --format, --json, -o.
class ResultOptions {
 public:
  void add_to(CLI::App& command);
  /// Call before the work is done. Throws InputError if the file of -o cannot be written.
  void check() const;
  /// Writes the result to standard output or to the file of -o. `text` makes the text format. A reordering is
  /// part of text and JSON; with the other formats, standard error tells of it.
  void show(const plan::LimitedSchedule& made, const plan::Costs& costs, const plan::Timeline& timeline,
            const std::function<std::string()>& text) const;
  /// `more`: an object whose members are added to the JSON format.
  void show(const plan::LimitedSchedule& made, const plan::Costs& costs, const plan::Timeline& timeline,
            const std::function<std::string()>& text, const nlohmann::ordered_json& more) const;

 private:
  [[nodiscard]] std::string format() const;

  std::optional<std::string> format_;
  bool json_ = false;
  std::optional<std::string> file_;
};

/// The predicted run as an SVG image.
std::string predicted_svg(const plan::Schedule& schedule, const plan::Timeline& timeline);
/// The predicted run as a Chrome trace. A unit of time is shown as a second.
std::string predicted_trace(const plan::Schedule& schedule, const plan::Timeline& timeline);

/// Drawing and table: as wide as the terminal and in colour, or 200 columns wide without colour if standard
/// output is not a terminal.
std::string drawn(const plan::Schedule& schedule, const plan::Timeline& timeline);

}  // namespace starpipe::cli
