// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/registry/plugin_interface.hpp"
#include "starpipe/plan/registry/registry.hpp"

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
/// The macro also leaves `interface_text` in the file: the version of starpipe, the compiler, the language
/// standard, the standard library and the layout of the types that both sides exchange. `load_plugin` reads
/// it before it runs any code of the plug-in, and refuses a plug-in whose text is not that of starpipe.
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is the name of a parameter
#define STARPIPE_PLUGIN(schedules)                                                                  \
  extern "C" {                                                                                      \
  __attribute__((                                                                                   \
      visibility("default"))) extern const starpipe::plan::InterfaceText starpipe_plugin_interface; \
  constinit const starpipe::plan::InterfaceText starpipe_plugin_interface =                         \
      starpipe::plan::marked_interface_text();                                                      \
  __attribute__((visibility("default"))) void starpipe_plugin(                                      \
      std::vector<starpipe::plan::ScheduleEntry>& schedules);                                       \
  }                                                                                                 \
  void starpipe_plugin(std::vector<starpipe::plan::ScheduleEntry>& schedules)
// NOLINTEND(bugprone-macro-parentheses)

namespace starpipe::plan {

/// Adds the schedules of a plug-in to the registry, all of them or none, and returns their names. Loading a
/// file again adds nothing. It stays loaded until the process ends. Not thread-safe.
///
/// Throws InputError, naming the file, when it is not a plug-in or was built for another interface; then none
/// of its code runs. Also throws when the dynamic loader refuses the file, when an initialiser registers a
/// schedule under a name that is taken, when the plug-in's function throws, and when an entry has no name, no
/// function, or a name that is taken; and when it adds no schedule, layer or network.
std::vector<std::string> load_plugin(const std::filesystem::path& file);

/// Loads plug-ins from their files. Returns the files of the plug-ins without a schedule of this name or
/// alias. Throws InputError as `load_plugin` and `find_schedule` do.
std::vector<std::string> load_plugins_without(const std::vector<std::string>& files, std::string_view name);

/// Loads the plug-ins of the schedules with these names or aliases. Throws InputError as `load_plugin` and
/// `find_schedule` do, and, starting with `asked_by`, for a plug-in that has none of the schedules: it would
/// change nothing. A plug-in that has registered `network` is of use too, and beside it one with layers
/// alone.
void load_plugins_for(const std::vector<std::string>& files, const std::vector<std::string>& names,
                      std::string_view asked_by, const std::string& network = "");

/// Thrown when a plug-in's function needs more memory than there is. `what()` is one line, which names the
/// plug-in's file and the schedule.
class PluginOutOfMemory : public std::bad_alloc {
 public:
  explicit PluginOutOfMemory(const std::string& message)
      : message_(std::make_shared<const std::string>(message)) {}
  [[nodiscard]] const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // copies of an exception must not throw
};

/// The name of the plug-in whose code runs now: its initialisers, its function, or the function of one of its
/// schedules. Null when none runs. A signal handler may call it. With several threads in plug-ins it names
/// any one of them.
const char* running_plugin();

}  // namespace starpipe::plan
