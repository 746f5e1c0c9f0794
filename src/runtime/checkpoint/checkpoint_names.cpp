// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checkpoint_names.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view writing_ending = ".writing";
constexpr std::string_view removing_ending = ".removing";

std::string step_name(std::int64_t step) { return fmt::format("{}{:08}", step_prefix, step); }

/// Takes a whole number, at least 0, from the beginning of `text`.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || text.front() == '-') return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// The step and the generation in a checkpoint's name; nothing for any other name.
std::optional<CheckpointDirectory> parse_name(std::string_view text, const fs::path& path) {
  if (!text.starts_with(step_prefix)) return {};
  text.remove_prefix(step_prefix.size());
  const auto step = take_number<std::int64_t>(text);
  if (!step) return {};
  CheckpointDirectory directory{*step, 1, path};
  if (!text.empty()) {
    if (text.front() != '.') return {};
    text.remove_prefix(1);
    const auto generation = take_number<int>(text);
    if (!generation || !text.empty()) return {};
    directory.generation = *generation;
  }
  return directory;
}

}  // namespace

fs::path writing_directory(const fs::path& folder, std::int64_t step) {
  return folder / (step_name(step) + std::string(writing_ending));
}

fs::path removing_directory(const fs::path& checkpoint) {
  fs::path path = checkpoint;
  return path += removing_ending;
}

fs::path free_directory(const fs::path& folder, std::int64_t step, const std::string& ending) {
  const fs::path first = folder / (step_name(step) + ending);
  fs::path path = first;
  for (int generation = 2; fs::exists(fs::symlink_status(path)); ++generation) {
    path = first;
    path += fmt::format(".{}", generation);
  }
  return path;
}

std::string part_name(int rank) { return fmt::format("rank-{:04}.safetensors", rank); }

FolderContent content_of(const fs::path& folder) {
  FolderContent content;
  std::error_code error;
  if (fs::status(folder, error).type() == fs::file_type::not_found) return content;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();  // perhaps of a link that leads nowhere now
    const std::string name = path.filename().string();
    if (const auto checkpoint = parse_name(name, path)) content.checkpoints.push_back(*checkpoint);
    for (const std::string_view ending : {writing_ending, removing_ending}) {
      if (!name.ends_with(ending)) continue;
      const auto begin = std::string_view(name).substr(0, name.size() - ending.size());
      if (const auto unfinished = parse_name(begin, path)) content.unfinished.push_back(*unfinished);
    }
  }
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::ranges::sort(content.checkpoints, std::greater());
  std::ranges::sort(content.unfinished);
  return content;
}

}  // namespace starpipe::runtime
