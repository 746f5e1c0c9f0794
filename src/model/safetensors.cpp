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
#include <limits>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "starpipe/base/ceil_div.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"

namespace starpipe::model {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian numbers");

constexpr std::uint64_t most_header_bytes = 100'000'000;  // the limit of the format's own implementation

InputError bad_file(const std::filesystem::path& file, const std::string& problem) {
  return InputError(file.string() + ": " + problem);
}

InputError bad_tensor(const std::filesystem::path& file, const std::string& name,
                      const std::string& problem) {
  return InputError(file.string() + ": tensor " + name + ": " + problem);
}

/// A type of numbers that is read: how many bytes one has, and its value from its bits.
struct NumberType {
  std::string_view name;
  std::size_t bytes;
  float (*value)(std::uint32_t bits);
};

/// The value of an IEEE 754 number of 16 bits.
float half_value(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 10U & 31U;
  const auto fraction = static_cast<float>(bits & 1023U);
  float size =
      std::ldexp(fraction + (exponent == 0 ? 0.0F : 1024.0F), static_cast<int>(std::max(exponent, 1U)) - 25);
  if (exponent == 31) size = fraction == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
  return bits >> 15U == 0 ? size : -size;
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
  const auto whole = [](const Json& value) { return value.is_number_unsigned(); };
  if (!json.is_object()) throw bad_tensor(file, name, "its header entry is not an object");
  const auto type = json.find("dtype");
  if (type == json.end() || !type->is_string()) throw bad_tensor(file, name, "has no dtype");
  const auto* const known = std::ranges::find(number_types, type->get<std::string>(), &NumberType::name);
  if (is_wanted && known == number_types.end()) {
    throw bad_tensor(file, name, "is " + type->get<std::string>() + ", not F32, F16 or BF16");
  }
  const auto shape = json.find("shape");
  if (shape == json.end() || !shape->is_array() || !std::all_of(shape->begin(), shape->end(), whole)) {
    throw bad_tensor(file, name, "has no valid shape");
  }
  const auto offsets = json.find("data_offsets");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2 ||
      !std::all_of(offsets->begin(), offsets->end(), whole)) {
    throw bad_tensor(file, name, "has no valid data_offsets");
  }
  TensorEntry entry{name, is_wanted ? known : nullptr, shape->get<std::vector<std::size_t>>(),
                    (*offsets)[0].get<std::uint64_t>(), (*offsets)[1].get<std::uint64_t>()};
  if (entry.begin > entry.end || entry.end > data_size) {
    throw bad_tensor(file, name, "lies outside the file (truncated?)");
  }
  if (entry.type == nullptr) return entry;
  // The size in bytes, without an overflow of the product.
  std::uint64_t bytes = entry.type->bytes;
  for (const std::size_t extent : entry.shape) {
    if (extent != 0 && bytes > std::numeric_limits<std::uint64_t>::max() / extent) {
      throw bad_tensor(file, name, "has a shape that is too large");
    }
    bytes *= extent;
  }
  if (bytes != entry.end - entry.begin) throw bad_tensor(file, name, "has offsets that do not fit its shape");
  return entry;
}

/// Reads the values of a tensor from where the stream is.
std::vector<float> read_values(std::istream& in, const TensorEntry& entry) {
  const std::uint64_t size = entry.end - entry.begin;
  std::vector<float> values(size / entry.type->bytes);
  if (entry.type->bytes == sizeof(float)) {
    in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(size));
    return values;
  }
  std::vector<std::uint16_t> bits(values.size());
  in.read(reinterpret_cast<char*>(bits.data()), static_cast<std::streamsize>(size));
  std::ranges::transform(bits, values.begin(), entry.type->value);
  return values;
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t end = offset + tensor.values.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize(ceil_div(text.size(), 8) * 8, ' ');
  const std::uint64_t length = text.size();

  write_file("safetensors", file, [&](std::ostream& out) {
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const auto& [name, tensor] : tensors) {
      out.write(reinterpret_cast<const char*>(tensor.values.data()),
                static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
    }
  });
}

std::map<std::string, Tensor> read_safetensors(const std::filesystem::path& file,
                                               std::map<std::string, std::string>* metadata,
                                               const std::function<bool(const std::string& name)>& wanted) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(file, error);
  if (error) throw bad_file(file, "cannot be read: " + error.message());
  if (!regular) throw bad_file(file, "is not a file");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) throw bad_file(file, std::string("cannot be read: ") + std::strerror(errno));
  const std::uint64_t size = std::filesystem::file_size(file);

  std::uint64_t length = 0;
  if (size < sizeof length || !in.read(reinterpret_cast<char*>(&length), sizeof length)) {
    throw bad_file(file, "is too short for a safetensors file");
  }
  if (length > size - sizeof length || length > most_header_bytes) {
    throw bad_file(file, "has a header longer than the file (truncated, or no safetensors file)");
  }
  std::string text(length, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(length))) throw bad_file(file, "cannot be read");
  const Json header = Json::parse(text, nullptr, false);
  if (!header.is_object()) throw bad_file(file, "has a header that is not a JSON object");

  const std::uint64_t data_start = sizeof length + length;
  std::vector<TensorEntry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(parse_entry(file, name, json, size - data_start, !wanted || wanted(name)));
      continue;
    }
    if (!json.is_object()) throw bad_file(file, "has metadata that is not an object");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) throw bad_file(file, "has metadata " + key + " that is not a string");
      if (metadata != nullptr) (*metadata)[key] = value.get<std::string>();
    }
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < covered) throw bad_tensor(file, entry.name, "overlaps another");
    if (entry.begin > covered) throw bad_tensor(file, entry.name, "has unused bytes before it");
    covered = entry.end;
  }
  if (covered != size - data_start) throw bad_file(file, "has unused bytes at its end");

  std::map<std::string, Tensor> tensors;
  for (const TensorEntry& entry : entries) {
    if (entry.type == nullptr) continue;
    in.seekg(static_cast<std::streamoff>(data_start + entry.begin));
    tensors[entry.name] = {entry.shape, read_values(in, entry)};
    if (!in) throw bad_tensor(file, entry.name, "cannot be read");
  }
  return tensors;
}

}  // namespace starpipe::model
