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
/// The function is called once in each process that loads the plug-in. An exception from it ends the command
/// with one line.
///
/// The macro also leaves a text with the version of starpipe in the file. `load_plugin` reads it before it
/// runs any code of the plug-in: C++ interfaces only fit a starpipe of the same major and minor version.
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

/// Adds the schedules of a plug-in to the registry, all of them or none, and returns their names. Loading a
/// file again adds nothing. It stays loaded until the process ends. Not thread-safe.
///
/// Throws InputError, naming the file, when it is not a plug-in or was built for another interface (before
/// any code of it runs), when the dynamic loader refuses it, when its function throws, and when an entry has
/// no name, no function, or a name that is taken.
std::vector<std::string> load_plugin(const std::filesystem::path& file);

}  // namespace starpipe::plan
