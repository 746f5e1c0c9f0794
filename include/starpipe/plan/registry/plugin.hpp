// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/version.hpp"

// Schedules from outside: a plug-in is a shared object with one STARPIPE_PLUGIN. Link it with
// starpipe::plan.

/// Begins the function in which a plug-in hands over its schedules; `schedules` is the name of its only
/// parameter, an empty std::vector<starpipe::plan::ScheduleEntry>&:
///
///     STARPIPE_PLUGIN(schedules) { schedules.push_back({"zigzag", "what it is", "source", zigzag}); }
///
/// It is called once in each process that loads the plug-in. What it throws ends the command with one line.
///
/// The text beside it is what `load_plugin` looks for in the file before anything in it runs: a plug-in fits
/// the starpipe of the same major and minor version, as the C++ interfaces it was compiled against do.
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is the name of a parameter
#define STARPIPE_PLUGIN(schedules)                                                           \
  extern "C" {                                                                               \
  __attribute__((visibility("default"))) extern const char starpipe_plugin_interface[];      \
  const char starpipe_plugin_interface[] = "starpipe plug-in interface " STARPIPE_INTERFACE; \
  __attribute__((visibility("default"))) void starpipe_plugin(                               \
      std::vector<starpipe::plan::ScheduleEntry>& schedules);                                \
  }                                                                                          \
  void starpipe_plugin(std::vector<starpipe::plan::ScheduleEntry>& schedules)
// NOLINTEND(bugprone-macro-parentheses)

namespace starpipe::plan {

/// Adds the schedules of a plug-in to the registry, all of them or none, and returns their names. A file
/// that is loaded already adds nothing again. It stays loaded until the process ends. Not thread-safe.
///
/// Throws InputError, naming the file: for what is no plug-in or was built for another interface, before
/// anything in it runs; for what the dynamic loader refuses; when its function throws; and for an entry
/// without name or function, or with a name that is taken.
std::vector<std::string> load_plugin(const std::filesystem::path& file);

}  // namespace starpipe::plan
