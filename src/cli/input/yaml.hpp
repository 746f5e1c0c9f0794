// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

namespace starpipe::cli {

/// A YAML value that a user wrote. A reader throws InputError when the value is not of its type; the message
/// starts with `label`, the place of the value and its key.
class YamlValue {
 public:
  YamlValue(const YAML::Node& node, std::string label) : node_(node), label_(std::move(label)) {}

  [[nodiscard]] const YAML::Node& node() const { return node_; }
  [[nodiscard]] const std::string& label() const { return label_; }
  [[noreturn]] void fail(std::string_view message) const;
  /// Throws InputError "LABEL: expected WHAT, got VALUE".
  [[noreturn]] void expected(std::string_view what) const;

  /// An integer in [least, most].
  template <class Integer>
  [[nodiscard]] Integer whole(Integer least, Integer most = std::numeric_limits<Integer>::max()) const;
  /// A finite number.
  [[nodiscard]] double number() const;
  [[nodiscard]] double positive() const;
  [[nodiscard]] double not_negative() const;
  /// In [0, 1).
  [[nodiscard]] double fraction() const;
  [[nodiscard]] bool boolean() const;
  /// A number of bytes, with a unit (16MiB) or without.
  [[nodiscard]] std::uint64_t bytes() const;
  /// A time with its unit (s, ms, us), in seconds.
  [[nodiscard]] double time() const;
  /// Text that is not empty.
  [[nodiscard]] std::string word() const;
  [[nodiscard]] std::string one_of(const std::vector<std::string>& words) const;

 private:
  YAML::Node node_;
  std::string label_;
};

/// "FILE:LINE" of something in `file`.
std::string place_of(const std::string& file, const YAML::Node& node);

/// The one document in a file; null when it is empty. Throws InputError naming file and line.
YAML::Node load_yaml(const std::filesystem::path& file);

/// For messages: "'abc'", "a list", "nothing".
std::string described(const YAML::Node& node);

}  // namespace starpipe::cli
