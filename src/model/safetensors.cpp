// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/files.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {

/// A type of numbers that is read: how many bytes one has, and its value from its bits.
struct NumberType {
  std::string_view name;
  std::size_t bytes;
  float (*value)(std::uint32_t bits);
};

namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian numbers");

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the limit of the format's own implementation

InputError bad_file(const std::filesystem::path& file, const std::string& problem) {
  return InputError(file.string() + ": " + problem);
}

/// Throws InputError if `file` exists but is not a regular file: a pipe can be read once. For a directory the
/// message names the file to give: of several, an index.
void require_regular(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  if (!exists(status) || is_regular_file(status)) return;
  if (!is_directory(status)) throw bad_file(file, "is not a file");
  std::filesystem::path found;
  std::string problem = "is a directory without .safetensors files";
  for (const auto& entry : std::filesystem::directory_iterator(file, error)) {
    const std::filesystem::path& path = entry.path();
    const std::string name = path.filename().string();
    if (name.starts_with("step-") || name.starts_with("rank-"))
      throw bad_file(
          file, "is a directory of checkpoints; train --resume --save-weights writes the weights of one");
    const bool is_index = name.ends_with(".safetensors.index.json");
    const bool is_better = found.empty() || (found.extension() != ".json" && path < found);
    if (is_index || (path.extension() == ".safetensors" && is_better)) found = path;
  }
  if (!found.empty()) problem = fmt::format("is a directory; give {}", found.string());
  throw bad_file(file, problem);
}

/// Returns the value of an IEEE 754 number of 16 bits.
float half_value(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 10U & 31U;
  const auto fraction = static_cast<float>(bits & 1023U);
  float size =
      std::ldexp(fraction + (exponent == 0 ? 0.0F : 1024.0F), static_cast<int>(std::max(exponent, 1U)) - 25);
  if (exponent == 31) size = fraction == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
  return bits >> 15U == 0 ? size : -size;
}

/// Returns an IEEE 754 number of 16 bits.
std::uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16U & 0x8000U;
  std::uint32_t size = bits & 0x7fffffffU;
  if (size > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);               // NaN
  if (size >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);              // 2^16: infinity
  if (size < 0x38800000U) {                                                                // 2^-14
    size = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f000000U;  // rounds to 2^-24
  } else {
    size = (size - (112U << 23U) + 0xfffU + (size >> 13U & 1U)) >> 13U;
  }
  return static_cast<std::uint16_t>(sign | size);
}

/// Returns the upper half of an fp32 number.
std::uint16_t brain_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16U | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

constexpr std::array number_types = {
    NumberType{"F32", 4, [](std::uint32_t bits) { return std::bit_cast<float>(bits); }},
    NumberType{"F16", 2, half_value},
    NumberType{"BF16", 2, [](std::uint32_t bits) { return std::bit_cast<float>(bits << 16U); }}};

/// A tensor's entry in the header; its data is the bytes [begin, end) behind the header.
struct TensorEntry {
  std::string name;
  const NumberType* type = nullptr;  ///< null for a tensor that is not read
  std::vector<std::size_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

TensorEntry parse_entry(const std::filesystem::path& file, const std::string& name, const Json& json,
                        std::uint64_t data_size, bool is_wanted) {
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) throw bad_tensor(file, name, problem);
  };
  require(json.is_object(), "its header entry is not an object");
  const auto type = json.find("dtype");
  require(type != json.end() && type->is_string(), "has no dtype");
  const auto* const known = std::ranges::find(number_types, type->get<std::string>(), &NumberType::name);
  require(!is_wanted || known != number_types.end(),
          "is " + type->get<std::string>() + ", not F32, F16 or BF16");
  const auto is_list = [&](const auto& found) {
    const auto is_whole = [](const Json& value) { return value.is_number_unsigned(); };
    return found != json.end() && found->is_array() && std::all_of(found->begin(), found->end(), is_whole);
  };
  const auto shape = json.find("shape");
  require(is_list(shape), "has no valid shape");
  const auto offsets = json.find("data_offsets");
  require(is_list(offsets) && offsets->size() == 2, "has no valid data_offsets");
  TensorEntry entry{name, is_wanted ? known : nullptr, shape->get<std::vector<std::size_t>>(),
                    (*offsets)[0].get<std::uint64_t>(), (*offsets)[1].get<std::uint64_t>()};
  require(entry.begin <= entry.end && entry.end <= data_size, "lies outside the file (truncated?)");
  if (entry.type == nullptr) return entry;
  // The size in bytes, without an overflow of the product.
  std::uint64_t bytes = entry.type->bytes;
  for (const std::size_t extent : entry.shape) {
    require(extent == 0 || bytes <= std::numeric_limits<std::uint64_t>::max() / extent,
            "has a shape that is too large");
    bytes *= extent;
  }
  require(bytes == entry.end - entry.begin, "has offsets that do not fit its shape");
  return entry;
}

/// The bytes that short reads of a tensor read at once: a slow disk takes as long for fewer.
constexpr std::size_t window_bytes = std::size_t{1} << 18U;

/// Takes numbers from their bytes.
void take_values(std::span<const char> bytes, const NumberType& type, std::span<float> values) {
  if (values.empty()) return;
  if (type.bytes == sizeof(float)) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &bytes[i * sizeof bits], sizeof bits);
    values[i] = type.value(bits);
  }
}

/// Returns the value of a JSON text, a discarded one if it is malformed. Throws InputError if an object has a
/// key twice: JSON would keep the last one. `what`: the word for a key.
Json parse_unique(const std::string& text, const std::filesystem::path& file, std::string_view what) {
  std::vector<std::set<std::string>> keys;  // by depth
  const auto note = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.resize(index(depth) + 1);
      keys.back().clear();
    }
    if (event == Json::parse_event_t::key &&
        !keys.at(index(depth) - 1).insert(value.get<std::string>()).second)
      throw bad_file(file, fmt::format("{} {}: is there twice", what, value.dump(-1, ' ', true)));
    return true;
  };
  return Json::parse(text, note, false);
}

/// Returns the JSON header of a file. The stream is at its beginning, and then behind the header.
/// `data_start` becomes the header's end.
Json read_header(std::istream& in, const std::filesystem::path& file, std::uint64_t size,
                 std::uint64_t& data_start) {
  std::uint64_t length = 0;
  if (size < sizeof length || !in.read(reinterpret_cast<char*>(&length), sizeof length)) {
    throw bad_file(file, "is too short for a safetensors file");
  }
  if (length > size - sizeof length || length > max_header_bytes) {
    if (std::memcmp(&length, lfs_pointer.data(), sizeof length) == 0)
      throw bad_file(file, "is a pointer of Git LFS; get the file itself with git lfs pull");
    throw bad_file(file, "has a header longer than the file (truncated, or no safetensors file)");
  }
  std::string text(length, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(length))) throw bad_file(file, "cannot be read");
  Json header = parse_unique(text, file, "tensor");
  if (!header.is_object()) throw bad_file(file, "has a header that is not a JSON object");
  data_start = sizeof length + length;
  return header;
}

void read_metadata(const std::filesystem::path& file, const Json& json,
                   std::map<std::string, std::string>* metadata) {
  if (json.is_null()) return;  // some writers have it in place of none
  if (!json.is_object()) throw bad_file(file, "has metadata that is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) throw bad_file(file, "has metadata " + key + " that is not a string");
    if (metadata != nullptr) (*metadata)[key] = value.get<std::string>();
  }
}

/// Sorts the entries by their data, which must cover all `data_size` bytes, each once.
void sort_entries(const std::filesystem::path& file, std::vector<TensorEntry>& entries,
                  std::uint64_t data_size) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < covered) throw bad_tensor(file, entry.name, "overlaps another");
    if (entry.begin > covered) throw bad_tensor(file, entry.name, "has unused bytes before it");
    covered = entry.end;
  }
  if (covered != data_size) throw bad_file(file, "has unused bytes at its end");
}

}  // namespace

InputError bad_tensor(const std::filesystem::path& file, const std::string& name,
                      const std::string& problem) {
  return InputError(file.string() + ": tensor " + name + ": " + problem);
}

std::size_t count_of(const std::vector<std::size_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::vector<std::uint16_t> stored_numbers(StoredType type, std::span<const float> values) {
  std::vector<std::uint16_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), type == StoredType::fp16 ? half_bits : brain_bits);
  return bits;
}

std::optional<float> first_overflow(StoredType type, std::span<const float> values) {
  if (type == StoredType::fp32) return std::nullopt;
  // The middle between the largest number and the power of two after it is a tie, and becomes the latter.
  const float limit = type == StoredType::fp16 ? 0x1.ffep15F : 0x1.ffp127F;
  const auto found = std::ranges::find_if(
      values, [limit](float value) { return std::abs(value) >= limit && std::isfinite(value); });
  return found == values.end() ? std::nullopt : std::optional(*found);
}

std::string safetensors_start(std::span<const TensorShape> tensors,
                              const std::map<std::string, std::string>& metadata, StoredType type) {
  constexpr std::array names = {"F32", "BF16", "F16"};
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, shape] : tensors) {
    const std::uint64_t end = offset + stored_bytes(type) * count_of(shape);
    header[name] = {
        {"dtype", names[static_cast<std::size_t>(type)]}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const std::uint64_t length = ceil_div(text.size(), std::size_t{8}) * 8;
  std::string start(sizeof length, '\0');
  std::memcpy(start.data(), &length, sizeof length);
  start += text;
  start.resize(sizeof length + length, ' ');
  return start;
}

void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorShape> shapes;
  shapes.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) shapes.push_back({name, tensor.shape});
  write_file("safetensors", file, [&](std::ostream& out) {
    out << safetensors_start(shapes, metadata);
    for (const auto& [name, tensor] : tensors) {
      out.write(reinterpret_cast<const char*>(tensor.values.data()),
                static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
    }
  });
}

SafetensorsReader::SafetensorsReader(std::filesystem::path file, std::map<std::string, std::string>* metadata,
                                     const std::function<bool(const std::string& name)>& wanted)
    : file_(std::move(file)) {
  require_regular(file_);
  errno = 0;
  in_.rdbuf()->pubsetbuf(nullptr, 0);
  in_.open(file_, std::ios::binary);
  if (!in_) throw bad_file(file_, std::string("cannot be read: ") + std::strerror(errno));
  const std::uint64_t size = std::filesystem::file_size(file_);

  std::uint64_t data_start = 0;
  const Json header = read_header(in_, file_, size, data_start);
  std::vector<TensorEntry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      read_metadata(file_, json, metadata);
    } else {
      entries.push_back(parse_entry(file_, name, json, size - data_start, !wanted || wanted(name)));
    }
  }
  sort_entries(file_, entries, size - data_start);
  for (TensorEntry& entry : entries) {
    if (entry.type == nullptr) continue;
    places_[entry.name] = {tensors_.size(), entry.type, data_start + entry.begin, data_start + entry.end};
    tensors_.push_back({std::move(entry.name), std::move(entry.shape)});
  }
}

const std::vector<std::size_t>* SafetensorsReader::shape(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &tensors_[found->second.index].shape;
}

std::uint64_t SafetensorsReader::Place::count() const { return (end - begin) / type->bytes; }

const SafetensorsReader::Place& SafetensorsReader::place(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw bad_tensor(file_, name, "is missing");
  return found->second;
}

void SafetensorsReader::read(const std::string& name, std::span<float> values) {
  const std::uint64_t count = place(name).count();
  if (count != values.size()) {
    throw bad_tensor(file_, name,
                     "has " + std::to_string(count) + " values, not " + std::to_string(values.size()));
  }
  read(name, 0, values);
}

void SafetensorsReader::read(const std::string& name, std::size_t first, std::span<float> values) {
  const Place& from = place(name);
  if (first + values.size() > from.count())
    throw bad_tensor(file_, name, fmt::format("has {} values, not {}", from.count(), first + values.size()));
  const std::uint64_t begin = from.begin + first * from.type->bytes;
  const std::size_t size = values.size() * from.type->bytes;
  const auto read_bytes = [&](std::span<char> bytes) {
    in_.clear();
    in_.seekg(static_cast<std::streamoff>(begin));
    in_.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!in_) throw bad_tensor(file_, name, "cannot be read");
  };
  if (size >= window_bytes && from.type->bytes == sizeof(float)) {
    read_bytes({reinterpret_cast<char*>(values.data()), size});
    return;
  }
  if (begin < window_begin_ || begin + size > window_begin_ + window_.size()) {
    std::vector<char> window(std::min<std::uint64_t>(std::max(window_bytes, size), from.end - begin));
    window_.clear();
    read_bytes(window);
    window_ = std::move(window);
    window_begin_ = begin;
  }
  take_values(std::span(window_).subspan(begin - window_begin_, size), *from.type, values);
}

std::map<std::string, Tensor> read_safetensors(const std::filesystem::path& file,
                                               std::map<std::string, std::string>* metadata,
                                               const std::function<bool(const std::string& name)>& wanted,
                                               bool with_values) {
  SafetensorsReader reader(file, metadata, wanted);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, shape] : reader.tensors()) {
    Tensor& tensor = tensors[name];
    tensor.shape = shape;
    if (!with_values) continue;
    tensor.values.resize(count_of(shape));
    reader.read(name, tensor.values);
  }
  return tensors;
}

bool is_safetensors_index(const std::filesystem::path& file) { return suffix_of(file) == ".json"; }

std::map<std::filesystem::path, std::set<std::string>> read_safetensors_index(
    const std::filesystem::path& index) {
  require_regular(index);
  const Json json = parse_unique(read_file(index), index, "key");
  const auto names = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || names == json.end() || !names->is_object() || names->empty()) {
    throw InputError(
        fmt::format("{}: is not an index of safetensors files: it has no \"weight_map\"", index.string()));
  }
  std::map<std::filesystem::path, std::set<std::string>> files;
  for (const auto& [tensor, value] : names->items()) {
    const std::filesystem::path file = value.is_string() ? value.get<std::string>() : std::string();
    const bool leaves = file.is_absolute() || std::ranges::find(file, "..") != file.end();
    if (file.filename().empty() || file.filename() == "." || leaves) {
      // A value of many levels cannot be printed: the library does it by recursion.
      throw InputError(fmt::format(
          "{}: tensor {}: {} is not the name of a file in the folder of the index", index.string(), tensor,
          value.is_structured() ? std::string("an ") + value.type_name() : value.dump(-1, ' ', true)));
    }
    files[index.parent_path() / file].insert(tensor);
  }
  return files;
}

std::string safetensors_index(const std::map<std::string, std::vector<std::string>>& files,
                              std::uint64_t bytes) {
  Json names = Json::object();
  for (const auto& [file, tensors] : files) {
    for (const std::string& tensor : tensors) names[tensor] = file;
  }
  return Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(names)}}.dump(2) + "\n";
}

}  // namespace starpipe::model
