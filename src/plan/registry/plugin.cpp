// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/plugin.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"

namespace starpipe::plan {
namespace {

using PluginFunction = void(std::vector<ScheduleEntry>&);

std::atomic<const char*> running = nullptr;

// An object of this class exists while code of the plug-in runs.
class PluginCall {
 public:
  // `file` must stay until the process ends: a signal handler may read it.
  explicit PluginCall(const char* file) : outer_(running.exchange(file)) {}
  ~PluginCall() { running = outer_; }
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  const char* outer_;
};

// Returns the name of a file, in memory that is never freed. Static destructors do not free it either: a
// plug-in that calls exit runs them, and a signal handler may read the name after that.
const char* kept_name(const std::filesystem::path& file) {
  static std::set<std::string>& names = *new std::set<std::string>;
  return names.insert(file.string()).first->c_str();
}

// True if a character is printable ASCII and not a blank.
bool is_plain(char c) { return c > ' ' && c < 0x7f; }

// Returns the STARPIPE_INTERFACE that STARPIPE_PLUGIN left in the file, or an empty text for another file.
// The file is only read, because loading it would run its initialisers.
std::string interface_of(const std::string& content) {
  constexpr std::string_view mark = "starpipe plug-in interface: ";
  for (auto at = content.find(mark); at != std::string::npos; at = content.find(mark, at + 1)) {
    const auto begin = content.begin() + static_cast<std::ptrdiff_t>(at + mark.size());
    const auto end = std::find_if_not(begin, content.end(), [](char c) { return c == ' ' || is_plain(c); });
    // starpipe's own libraries contain the mark too, with nothing after it.
    if (end != begin && end != content.end() && *end == '\0') return {begin, end};
  }
  return {};
}

// Returns the first part of two interfaces that differs, such as "GCC 12 in starpipe, Clang 14 in the
// plug-in". Parts end at semicolons.
std::string difference(std::string_view ours, std::string_view theirs) {
  const auto differs = std::ranges::mismatch(ours, theirs).in1;
  const auto at = static_cast<std::size_t>(differs - ours.begin());
  const auto part = [at](std::string_view text) {
    const auto before = text.substr(0, at).rfind("; ");
    text.remove_prefix(before == std::string_view::npos ? 0 : before + 2);
    return text.substr(0, text.find(';'));
  };
  return fmt::format("{} in starpipe, {} in the plug-in", part(ours), part(theirs));
}

template <class... Args>
[[noreturn]] void refuse_plugin(const std::filesystem::path& file, fmt::format_string<Args...> why,
                                Args&&... args) {
  throw InputError(
      fmt::format("plug-in {}: {}", file.string(), fmt::format(why, std::forward<Args>(args)...)));
}

void require_plugin(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) refuse_plugin(file, "No such file or directory");
  if (!std::filesystem::is_regular_file(status)) refuse_plugin(file, "not a file");
  const std::string found = interface_of(read_file(file));
  if (found.empty()) {
    refuse_plugin(
        file,
        "it is not a plug-in of starpipe: it has no STARPIPE_PLUGIN (starpipe/plan/registry/plugin.hpp)");
  }
  if (found != STARPIPE_INTERFACE) {
    refuse_plugin(file,
                  "it was built for another starpipe ({}); build it again with this starpipe's headers, "
                  "compiler and options",
                  difference(STARPIPE_INTERFACE, found));
  }
}

PluginFunction* load(const std::filesystem::path& file) {
  void* handle = nullptr;
  {
    const PluginCall call(kept_name(file));
    handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (const auto errors = take_registration_errors(); !errors.empty())
    refuse_plugin(file, "{}", errors.front());
  void* const function = handle == nullptr ? nullptr : dlsym(handle, "starpipe_plugin");
  if (function != nullptr) return reinterpret_cast<PluginFunction*>(function);
  const char* const told = dlerror();  // null if starpipe_plugin is there and is null
  std::string_view why = told == nullptr ? "its starpipe_plugin is null" : told;
  const std::string prefix = file.string() + ": ";
  if (why.starts_with(prefix)) why.remove_prefix(prefix.size());
  refuse_plugin(file, "cannot be loaded: {}", why);
}

// Replaces a function of the plug-in's schedule by one that calls it. Exceptions become ours, with names.
template <class Result, class Argument>
void guard(std::function<Result(const Argument&)>& function, const char* plugin, const std::string& schedule,
           const char* doing) {
  if (!function) return;
  function = [of_plugin = std::move(function), doing,
              subject = fmt::format("plug-in {}: schedule '{}'", plugin, schedule),
              plugin](const Argument& argument) {
    const PluginCall call(plugin);
    try {
      return of_plugin(argument);
    } catch (const RequestError&) {
      throw;  // names the option or the key
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", subject, error.what()));
    } catch (const std::bad_alloc&) {
      throw PluginOutOfMemory(subject + ": out of memory");
    } catch (const std::exception& error) {
      throw BrokenSchedule(fmt::format("{}: {} threw: {}", subject, doing, error.what()));
    } catch (...) {
      throw BrokenSchedule(
          fmt::format("{}: {} threw something that is not a std::exception", subject, doing));
    }
  };
}

std::vector<ScheduleEntry> schedules_of(PluginFunction& function, const std::filesystem::path& file) {
  std::vector<ScheduleEntry> schedules;
  const auto refuse_thrown = [&](std::string_view what) {
    refuse_plugin(file, "handing over its schedules, it threw {}", what);
  };
  const char* const name = kept_name(file);
  try {
    const PluginCall call(name);
    function(schedules);
  } catch (const std::exception& error) {
    refuse_thrown(error.what());
  } catch (...) {
    refuse_thrown("something that is not a std::exception");
  }
  for (ScheduleEntry& entry : schedules) {
    guard(entry.build, name, entry.name, "building it");
    guard(entry.stages_with, name, entry.name, "counting its stages");
  }
  return schedules;
}

// The names that a plug-in has added to the registries.
struct Added {
  std::vector<std::string> schedules;
  std::vector<std::string> networks;
  bool layers = false;
};

// `first`: the number of registrations before the plug-in was loaded.
Added added_since(std::size_t first) {
  Added added;
  for (std::size_t i = first; i < registrations().size(); ++i) {
    const Registration& one = registrations()[i];
    if (one.what == "network")
      added.networks.push_back(one.name);
    else
      added.layers = true;
  }
  return added;
}

void require_usable(const std::vector<ScheduleEntry>& schedules, const std::filesystem::path& file) {
  std::set<std::string_view> taken;
  const std::vector<ScheduleEntry> registered = schedule_entries();
  for (const ScheduleEntry& entry : registered) taken.insert(entry.name);
  for (const ScheduleEntry& entry : schedules) {
    if (entry.name.empty() || !std::ranges::all_of(entry.name, is_plain)) {
      refuse_plugin(file, "the name of a schedule must be letters, digits and signs, without blanks");
    }
    if (!entry.build) refuse_plugin(file, "schedule '{}' has no function that builds it", entry.name);
    if (entry.stages_per_worker < 1 || entry.stages_per_worker > max_stages_per_worker) {
      refuse_plugin(file, "schedule '{}' has {} stages per worker, need 1 to {}", entry.name,
                    entry.stages_per_worker, max_stages_per_worker);
    }
    std::set<std::string_view> options;
    for (const ScheduleOption& option : entry.options) {
      const auto of_option = [&](std::string_view why) {
        refuse_plugin(file, "schedule '{}': option '{}': {}", entry.name, option.name, why);
      };
      if (option.name.empty() || !std::ranges::all_of(option.name, is_plain))
        of_option("its name must be letters, digits and signs, without blanks");
      if (!options.insert(option.name).second) of_option("it is there twice");
      if (option.min < 0 || option.min > option.default_value || option.default_value > option.max)
        of_option("its default is not between its minimum and its maximum, or these are negative");
    }
    if (!taken.insert(entry.name).second) refuse_plugin(file, "the name '{}' is taken", entry.name);
  }
}

const Added& loaded_plugin(const std::filesystem::path& file) {
  static std::map<std::filesystem::path, Added> loaded;
  require_plugin(file);
  // The path is absolute, because the loader looks for bare names elsewhere.
  const std::filesystem::path path = std::filesystem::canonical(file);
  if (const auto found = loaded.find(path); found != loaded.end()) return found->second;
  const std::size_t before = registrations().size();
  const std::vector<ScheduleEntry> schedules = schedules_of(*load(path), file);
  Added added = added_since(before);
  if (schedules.empty() && added.networks.empty() && !added.layers)
    refuse_plugin(file, "it adds no schedule, layer or network");
  require_usable(schedules, file);
  for (const ScheduleEntry& entry : schedules) {
    register_schedule(entry);
    added.schedules.push_back(entry.name);
  }
  return loaded[path] = std::move(added);
}

// Returns the plug-ins among `files` that may build the network: one that has it, and then those with layers
// alone.
std::vector<std::string> plugins_of_network(const std::vector<std::string>& files,
                                            const std::string& network) {
  const auto has = [&](const std::string& file) {
    const std::vector<std::string>& networks = loaded_plugin(file).networks;
    return std::ranges::find(networks, network) != networks.end();
  };
  std::vector<std::string> found;
  if (std::ranges::none_of(files, has)) return found;
  std::ranges::copy_if(files, std::back_inserter(found), [&](const std::string& file) {
    const Added& added = loaded_plugin(file);
    return has(file) || (added.networks.empty() && added.layers);
  });
  return found;
}

}  // namespace

std::vector<std::string> load_plugin(const std::filesystem::path& file) {
  return loaded_plugin(file).schedules;
}

std::vector<std::string> load_plugins_without(const std::vector<std::string>& files, std::string_view name) {
  for (const std::string& file : files) load_plugin(file);
  const std::string& wanted = find_schedule(name).name;
  std::vector<std::string> without;
  for (const std::string& file : files) {
    const std::vector<std::string> names = load_plugin(file);
    if (std::ranges::find(names, wanted) == names.end()) without.push_back(file);
  }
  return without;
}

void load_plugins_for(const std::vector<std::string>& files, const std::vector<std::string>& names,
                      std::string_view asked_by, const std::string& network) {
  if (files.empty()) return;
  std::vector<std::string> idle = files;  // those without any of the schedules
  for (const std::string& name : names) {
    const std::vector<std::string> without = load_plugins_without(files, name);
    std::erase_if(idle,
                  [&](const std::string& file) { return std::ranges::find(without, file) == without.end(); });
  }
  for (const std::string& of_use : plugins_of_network(files, network)) std::erase(idle, of_use);
  if (idle.empty()) return;
  std::vector<std::string> lacks;
  if (!names.empty()) lacks.push_back(fmt::format("no schedule '{}'", fmt::join(names, "' or '")));
  const Added& added = loaded_plugin(idle.front());
  if (names.empty() || (!network.empty() && (!added.networks.empty() || added.layers)))
    lacks.push_back(fmt::format("no network '{}'", network));
  throw InputError(fmt::format("{}: {} has {}, so it would change nothing", asked_by, idle.front(),
                               fmt::join(lacks, " and ")));
}

const char* running_plugin() { return running; }

}  // namespace starpipe::plan
