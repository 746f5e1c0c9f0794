// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::cli {

/// Where and how a run is shown: --format, --json, -o.
class ResultOptions {
 public:
  void add_to(CLI::App& command);
  /// Before the work is done: throws InputError when the file could not be written.
  void check() const;
  /// `text`: what the text format shows.
  void show(const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
            const std::function<std::string()>& text) const;
  /// `more`: what the JSON format has besides, an object.
  void show(const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
            const std::function<std::string()>& text, const nlohmann::ordered_json& more) const;

 private:
  [[nodiscard]] std::string format() const;

  std::optional<std::string> format_;
  bool json_ = false;
  std::optional<std::string> file_;
};

/// The predicted run as an SVG image; `unit` is that of its times.
std::string predicted_svg(const plan::Schedule& schedule, const plan::Timeline& timeline);
/// The predicted run as a Chrome trace, in which a unit of time is shown as a second.
std::string predicted_trace(const plan::Schedule& schedule, const plan::Timeline& timeline);

/// Drawing and table, as wide and colourful as the terminal allows unless they go to a file.
std::string drawn(const plan::Schedule& schedule, const plan::Timeline& timeline);

}  // namespace starpipe::cli
