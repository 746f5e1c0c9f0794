// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/version.hpp"

// Schedules from outside: a plug-in is a shared object with one STARPIPE_PLUGIN. Link it with
// starpipe::plan.

// STARPIPE_INTERFACE describes the headers, compiler and options with which this file is compiled. A plug-in
// and starpipe exchange objects of the standard library, whose layout depends on all of them.
#define STARPIPE_TEXT(number) #number
#define STARPIPE_TEXT_OF(macro) STARPIPE_TEXT(macro)

#if defined(__clang__)
#define STARPIPE_COMPILER "Clang " STARPIPE_TEXT_OF(__clang_major__)
#elif defined(__GNUC__)
#define STARPIPE_COMPILER "GCC " STARPIPE_TEXT_OF(__GNUC__)
#else
#error "starpipe's plug-ins are known to work with GCC and Clang only"
#endif

#if defined(_GLIBCXX_DEBUG)
#define STARPIPE_DEBUG_LIBRARY "1"
#else
#define STARPIPE_DEBUG_LIBRARY "0"
#endif

// clang-format off
#if defined(_LIBCPP_VERSION)
#define STARPIPE_STANDARD_LIBRARY               \
  "libc++ " STARPIPE_TEXT_OF(_LIBCPP_VERSION)   \
  "; libc++ ABI " STARPIPE_TEXT_OF(_LIBCPP_ABI_VERSION)
#elif defined(_GLIBCXX_RELEASE)
#define STARPIPE_STANDARD_LIBRARY                                        \
  "libstdc++ " STARPIPE_TEXT_OF(_GLIBCXX_RELEASE)                        \
  "; _GLIBCXX_USE_CXX11_ABI=" STARPIPE_TEXT_OF(_GLIBCXX_USE_CXX11_ABI)   \
  "; _GLIBCXX_DEBUG=" STARPIPE_DEBUG_LIBRARY
#else
#error "starpipe's plug-ins are known to work with libstdc++ and libc++ only"
#endif

#define STARPIPE_INTERFACE                          \
  "starpipe " STARPIPE_INTERFACE_VERSION            \
  "; " STARPIPE_COMPILER                            \
  "; C++ " STARPIPE_TEXT_OF(__cplusplus)            \
  "; " STARPIPE_STANDARD_LIBRARY                    \
  "; C++ ABI " STARPIPE_TEXT_OF(__GXX_ABI_VERSION)  \
  "; headers " STARPIPE_HEADERS
// clang-format on

/// Begins the function in which a plug-in hands over its schedules; `schedules` is the name of its only
/// parameter, an empty std::vector<starpipe::plan::ScheduleEntry>&:
///
///     STARPIPE_PLUGIN(schedules) { schedules.push_back({"zigzag", "what it is", "source", zigzag}); }
///
/// The function is called once in each process that loads the plug-in. An exception from it ends the command
/// with one line.
///
/// The macro also leaves STARPIPE_INTERFACE in the file. `load_plugin` reads it before it runs any code of
/// the plug-in, and refuses a plug-in whose text differs from starpipe's.
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is the name of a parameter
#define STARPIPE_PLUGIN(schedules)                                                                      \
  extern "C" {                                                                                          \
  __attribute__((visibility("default"))) extern const char starpipe_plugin_interface[];                 \
  constinit const char starpipe_plugin_interface[] = "starpipe plug-in interface: " STARPIPE_INTERFACE; \
  __attribute__((visibility("default"))) void starpipe_plugin(                                          \
      std::vector<starpipe::plan::ScheduleEntry>& schedules);                                           \
  }                                                                                                     \
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
/// change nothing. A plug-in that has registered `network` is of use, too, and then also a plug-in with
/// layers alone.
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

/// Returns the name of the plug-in whose code runs now: its initialisers, its function, or the function of
/// one of its schedules. Null when none runs. A signal handler may call it. With several threads in plug-ins
/// it names any one of them.
const char* running_plugin();

}  // namespace starpipe::plan
