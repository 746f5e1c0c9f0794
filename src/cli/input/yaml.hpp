// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

namespace starpipe::cli {

/// A YAML value that a user wrote. Its readers throw InputError that starts with `label`, which says where
/// the value stands and which key it belongs to, unless the value is what they are for.
class YamlValue {
 public:
  YamlValue(const YAML::Node& node, std::string label) : node_(node), label_(std::move(label)) {}

  [[nodiscard]] const YAML::Node& node() const { return node_; }
  [[nodiscard]] const std::string& label() const { return label_; }
  [[noreturn]] void fail(std::string_view message) const;
  /// "expected WHAT, got ...".
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
  /// One such time, or a list of them.
  [[nodiscard]] std::vector<double> times() const;
  /// Any text but the empty one.
  [[nodiscard]] std::string word() const;
  [[nodiscard]] std::string one_of(const std::vector<std::string>& words) const;
  /// One of them, or a list of such, not empty.
  [[nodiscard]] std::vector<std::string> some_of(const std::vector<std::string>& words) const;
  /// A word, or a list of words.
  [[nodiscard]] std::vector<std::string> words() const;
  /// A list of integers of at least `least`.
  [[nodiscard]] std::vector<int> wholes(int least) const;

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
