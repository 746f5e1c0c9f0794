// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starpipe {

/// Returns the value of an environment variable, or nullopt if it is not set. Like `getenv`, not to be called
/// while another thread changes the environment.
std::optional<std::string> environment(const char* name);

/// Returns the whole number, at least 0, in an environment variable, or nullopt if it is not set or empty.
/// Throws InputError, which names variable and value, for any other text.
std::optional<int> environment_number(const char* name);

/// Sets an environment variable for its own lifetime and then restores it. Both change the environment of the
/// whole process, while no other thread may read it.
class ScopedVariable {
 public:
  /// No `value`: the variable is not set during this lifetime. `name` must outlive this.
  ScopedVariable(const char* name, const std::optional<std::string>& value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// An environment variable whose value changes while other threads of the process read other variables.
/// `setenv` may move the environment's table under such a thread. So the constructor puts a string of this
/// object into the environment, with room for longer values, and a ScopedValue then overwrites the value in
/// place. Constructor and destructor change the environment as ScopedVariable does.
class ReservedVariable {
 public:
  /// Gives the variable the value `otherwise` unless it is set already. `room`: characters of the longest
  /// value that can be written later. `name` must outlive this.
  ReservedVariable(const char* name, std::string_view otherwise, std::size_t room);
  ~ReservedVariable();
  ReservedVariable(const ReservedVariable&) = delete;
  ReservedVariable& operator=(const ReservedVariable&) = delete;

  [[nodiscard]] const char* name() const { return name_; }
  /// True if it was set before this object.
  [[nodiscard]] bool was_set() const { return before_.has_value(); }
  /// Returns the place of the value in the environment; null when the variable was unset since. Throws
  /// std::length_error when a value of `wanted` characters does not fit there.
  [[nodiscard]] char* find(std::size_t wanted) const;

 private:
  const char* name_;
  std::optional<std::string> before_;
  std::vector<char> text_;  // "NAME=value", zeros to the end of the room
  std::size_t room_;
};

/// Overwrites the value of a reserved variable for its own lifetime, and then writes the earlier value back.
/// No other thread may read this variable at these two moments.
class ScopedValue {
 public:
  /// `variable` must outlive this. Throws std::length_error if the value does not fit.
  ScopedValue(const ReservedVariable& variable, std::string_view value);
  ~ScopedValue();
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  void write(std::string_view value);

  const char* name_;
  char* place_;
  std::optional<std::string> before_;
};

/// True if this code runs on StarPU's build for SimGrid: on simulated GPUs and links, in simulated time
/// (docs/simulated-clusters.md). All threads of StarPU are then coroutines of one thread. They switch only
/// where StarPU, MPI or SimGrid wait. So nothing may block by other means, and no thread of ours may run.
#ifdef STARPIPE_ON_SIMGRID
inline constexpr bool on_simgrid = true;
#else
inline constexpr bool on_simgrid = false;
#endif

}  // namespace starpipe
