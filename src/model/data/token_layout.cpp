// SPDX-License-Identifier: Apache-2.0
#include "model/data/token_layout.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

static_assert(std::endian::native == std::endian::little, "token files hold little-endian numbers");

/// The header that identifies a token file of llm.c.
struct HeaderKind {
  std::int32_t magic;
  std::int32_t version;
  std::size_t token_bytes;
};
constexpr std::array header_kinds = {HeaderKind{20240520, 1, 2}, HeaderKind{20240801, 7, 4}};
constexpr std::size_t header_bytes = 1024;
constexpr const char* known_kinds = "20240520 with version 1, 20240801 with version 7";

/// True if the number is a date of 2024: all files of llm.c have one as magic number (checkpoints,
/// tokenizers, questions). As flat uint16 it would be a token above 54,912 before the token 308, so no file
/// with GPT-2's 50,257 tokens begins like this.
bool is_magic_number(std::int32_t number) { return number > 20240000 && number < 20250000; }

/// Returns the int32 number `place` of the file, or 0 behind the file's end.
std::int32_t number_at(std::span<const unsigned char> file, std::size_t place) {
  std::int32_t number = 0;
  if (file.size() >= (place + 1) * sizeof number) {
    std::memcpy(&number, file.data() + place * sizeof number, sizeof number);
  }
  return number;
}

TokenLayout layout_behind_header(const std::filesystem::path& path, std::span<const unsigned char> file) {
  const auto fail = [&](const std::string& problem) {
    return InputError(fmt::format("{}: {}", path.string(), problem));
  };
  const std::int32_t magic = number_at(file, 0);
  const auto* const kind = std::ranges::find(header_kinds, magic, &HeaderKind::magic);
  if (kind == header_kinds.end()) {
    throw fail(
        fmt::format("begins with the magic number {}, expected one of token files: {}", magic, known_kinds));
  }
  if (file.size() < header_bytes) {
    throw fail(
        fmt::format("begins with the magic number {} but has {} bytes, fewer than the {} of its header",
                    magic, file.size(), header_bytes));
  }
  const std::int32_t version = number_at(file, 1);
  if (version != kind->version) {
    throw fail(fmt::format("has the magic number {} with version {}, expected version {}", magic, version,
                           kind->version));
  }
  const std::int64_t count = number_at(file, 2);
  const std::size_t rest = file.size() - header_bytes;
  if (count < 0 || static_cast<std::uint64_t>(count) * kind->token_bytes != rest) {
    throw fail(fmt::format("its header counts {} tokens of {} bytes, but {} bytes follow", count,
                           kind->token_bytes, rest));
  }
  return {header_bytes, kind->token_bytes, static_cast<std::uint64_t>(count)};
}

constexpr std::string_view numpy_magic = "\x93NUMPY";

struct NumpyType {
  std::string_view descr;
  std::size_t bytes;
  bool is_signed = false;
};
constexpr std::array numpy_types = {
    NumpyType{"|u1", 1}, NumpyType{"|i1", 1, true}, NumpyType{"<u2", 2}, NumpyType{"<i2", 2, true},
    NumpyType{"<u4", 4}, NumpyType{"<i4", 4, true}, NumpyType{"<u8", 8}, NumpyType{"<i8", 8, true}};

/// Returns the text between `begin`, after the key, and `end` in the dictionary of a header of NumPy.
std::string_view numpy_value(std::string_view header, std::string_view key, char begin, char end) {
  const std::size_t at = header.find(key);
  const std::size_t first = at == std::string_view::npos ? at : header.find(begin, at + key.size());
  const std::size_t last = first == std::string_view::npos ? first : header.find(end, first + 1);
  return last == std::string_view::npos ? std::string_view() : header.substr(first + 1, last - first - 1);
}

/// The header is a dictionary as text: NumPy, numpy/lib/format.py.
TokenLayout numpy_layout(const std::filesystem::path& path, std::string_view file) {
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) throw InputError(fmt::format("{}: is an array of NumPy {}", path.string(), problem));
  };
  const std::size_t length_bytes = file.size() > 6 && file[6] == 1 ? 2 : 4;
  const std::size_t begin = numpy_magic.size() + 2 + length_bytes;
  std::uint32_t length = 0;
  require(file.size() >= begin, "whose header is cut off");
  std::memcpy(&length, file.data() + begin - length_bytes, length_bytes);
  require(length <= file.size() - begin, "whose header is cut off");
  const std::string_view header = file.substr(begin, length);
  const std::string_view descr = numpy_value(header, "'descr':", '\'', '\'');
  const auto* const type = std::ranges::find(numpy_types, descr, &NumpyType::descr);
  require(type != numpy_types.end(),
          fmt::format("of type {}; save it as whole little-endian numbers, with .astype('uint32')",
                      one_line(descr.substr(0, 40))));
  const std::string_view shape = numpy_value(header, "'shape':", '(', ')');
  std::uint64_t tokens = 0;
  const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), tokens);
  require(error == std::errc() && std::string_view(end, shape.data() + shape.size()) == ",",
          fmt::format("of shape ({}); save its tokens in one dimension, with .reshape(-1)",
                      one_line(shape.substr(0, 40))));
  const std::size_t rest = file.size() - begin - length;
  require(rest % type->bytes == 0 && rest / type->bytes == tokens,
          fmt::format("whose header counts {} numbers of {} bytes, but {} bytes follow", tokens, type->bytes,
                      rest));
  return {begin + length, type->bytes, tokens, type->is_signed};
}

constexpr std::string_view unpack = "; unpack it";
constexpr std::string_view save_alone = "; save its array of tokens alone, with numpy.save";

/// A kind of file that holds no flat numbers, by the bytes with which it begins.
struct OtherKind {
  std::string_view begins;
  std::string_view name;
  std::string_view remedy = save_alone;
};
using namespace std::string_view_literals;
/// Files that stand for another file. No text is meant to be read from them either.
constexpr std::array packed_kinds = {
    OtherKind{lfs_pointer, "is a pointer of Git LFS", "; get the file itself with git lfs pull"},
    OtherKind{"\x1f\x8b\x08"sv, "is packed by gzip", unpack},
    OtherKind{"BZh91AY&SY"sv, "is packed by bzip2", unpack},
    OtherKind{"\xfd\x37zXZ\0"sv, "is packed by xz", unpack},
    OtherKind{"7z\xbc\xaf\x27\x1c"sv, "is packed by 7-Zip", unpack},
    OtherKind{"\x28\xb5\x2f\xfd"sv, "is packed by zstd", unpack},
    OtherKind{"\x50\x2a\x4d\x18"sv, "is packed by zstd", unpack},  // with a frame that is skipped
    OtherKind{"\x04\x22\x4d\x18"sv, "is packed by lz4", unpack},
    OtherKind{"Rar!\x1a\x07"sv, "is packed by RAR", unpack}};
constexpr std::array other_kinds = {
    OtherKind{"PK\x03\x04"sv, "is a zip archive, as .npz and .pt are"},
    OtherKind{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46"sv, "is a file of torch.save"},
    OtherKind{"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file"},
    OtherKind{"PAR1"sv, "is a Parquet file"},
    OtherKind{"ARROW1"sv, "is an Arrow file"},
    OtherKind{"FEA1"sv, "is an Arrow file"},
    OtherKind{"Obj\x01"sv, "is an Avro file"},
    OtherKind{"MATLAB "sv, "is a file of MATLAB"},
    OtherKind{"CDF\x01"sv, "is a NetCDF file"},
    OtherKind{"MMIDIDX"sv, "is the index of Megatron-LM, not its .bin file"},
    OtherKind{"SQLite format 3"sv, "is a database of SQLite"},
    OtherKind{"GGUF"sv, "is a GGUF file of weights"},
    OtherKind{"%PDF-"sv, "is a PDF file"}};

/// True if the file is a pickle of Python. Protocols 4 and 5 begin with a frame, whose length is below 2^32.
/// Older ones begin with a list, a dictionary, a tuple or a class; protocols 0 and 1 without a number before
/// it.
bool is_pickle(std::string_view file) {
  if (file.size() < 12 || file.back() != '.') return false;
  for (const std::string_view oldest : {"(lp0\n"sv, "]q\0("sv, "}q\0("sv, "cnumpy"sv}) {
    if (file.starts_with(oldest)) return true;
  }
  if (file[0] != '\x80') return false;
  if (file[1] == 4 || file[1] == 5) return file[2] == '\x95' && file.substr(7, 4) == "\0\0\0\0"sv;
  const std::string_view opens = file.substr(2, 2);
  return (file[1] == 2 || file[1] == 3) &&
         (opens == "]q" || opens == "}q" || opens[0] == 'c' || opens[0] == '(');
}

/// True if the file begins with a message of Arrow, as the files of Hugging Face's datasets: -1, and the size
/// of its metadata.
bool is_arrow_stream(std::string_view file) {
  std::array<std::int32_t, 2> words{};
  if (file.size() >= sizeof words) std::memcpy(words.data(), file.data(), sizeof words);
  return words[0] == -1 && words[1] > 0 && words[1] % 8 == 0 && index(words[1]) < file.size();
}

/// Returns numbers of a flat file, up to 64 at each of 64 places: each place is a read of a page, which may
/// come from a slow disk.
template <class Number>
std::vector<Number> sample_of(std::string_view file) {
  constexpr std::size_t max_places = 64;
  constexpr std::size_t max_numbers = 64;
  const std::size_t count = file.size() / sizeof(Number);
  const std::size_t per_place = std::min(count, max_numbers);
  const std::size_t places = per_place == 0 ? 0 : std::min(count / per_place, max_places);
  std::vector<Number> sample(places * per_place);
  for (std::size_t place = 0; place < places; ++place) {
    const std::size_t start = (count - per_place) * place / std::max<std::size_t>(1, places - 1);
    std::memcpy(&sample[place * per_place], file.data() + start * sizeof(Number), per_place * sizeof(Number));
  }
  return sample;
}

/// True if the file holds whole numbers as floats, by a sample. Token ids are hardly ever such floats by
/// chance: the upper half of each would be a float's exponent.
template <class Float>
bool holds_floats(std::string_view file) {
  constexpr auto min_others_than_0 = 16;
  if (file.size() % sizeof(Float) != 0) return false;
  const std::vector<Float> sample = sample_of<Float>(file);
  const auto is_whole = [](Float number) {  // false for NaN
    return std::abs(number) < (1U << 24U) && number == std::trunc(number);
  };
  return std::ranges::all_of(sample, is_whole) &&
         std::ranges::count_if(sample, [](Float number) { return number != 0; }) >= min_others_than_0;
}

/// Counts of the lower or the upper bytes of uint16 numbers.
using ByteCounts = std::array<double, 256>;

/// Returns the entropy of the bytes, in bits.
double entropy_of(const ByteCounts& counts) {
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits -= count / all * std::log2(count / all);
  }
  return bits;
}

/// Returns why the numbers of a flat file of uint16 seem to be of another kind, by a sample; "" if they do
/// not.
///
/// Frequent tokens have small ids, so the upper bytes of ids differ less than the lower bytes, even if ids
/// are spread evenly below the vocabulary. If upper and lower bytes are equally frequent and not nearly
/// random, each byte is a number of its own.
std::string_view problem_of_uint16(std::string_view file) {
  constexpr std::size_t min_numbers = 32;
  constexpr std::size_t min_numbers_to_compare = 2048;
  constexpr double min_difference = 1;    // in bits
  constexpr double max_difference = 0.3;  // of the shares, in sum; chance makes up to 0.2
  constexpr double min_entropy = 2;
  constexpr double max_entropy = 7;
  const std::vector<std::uint16_t> sample = sample_of<std::uint16_t>(file);
  const auto count = static_cast<double>(sample.size());
  ByteCounts lower{};
  ByteCounts upper{};
  for (const std::uint16_t number : sample) {
    ++lower[number & 0xFFU];
    ++upper[number >> 8U];
  }
  const double of_lower = entropy_of(lower);
  const double of_upper = entropy_of(upper);
  if (sample.size() >= min_numbers && of_upper > of_lower + min_difference)
    return "its uint16 numbers seem to be big-endian: their upper bytes differ more than their lower bytes; "
           "write them with .astype('<u2')";
  // Big-endian ids of 4 or 8 bytes, up to 2^18: the upper half of each is 0, or nearly.
  std::size_t small = 0;
  std::size_t nonzero = 0;
  const std::vector<std::uint32_t> wide = sample_of<std::uint32_t>(file);
  for (const std::uint32_t number : wide) {
    small += __builtin_bswap32(number) < (1U << 18U) ? 1 : 0;
    nonzero += number != 0 ? 1 : 0;
  }
  if (wide.size() >= min_numbers && 20 * small >= 19 * wide.size() && 10 * nonzero > wide.size())
    return "its numbers seem to be big-endian, of 4 bytes or more; write them with .astype('<u4')";
  double difference = 0;
  for (std::size_t byte = 0; byte < lower.size(); ++byte) difference += std::abs(lower[byte] - upper[byte]);
  if (sample.size() >= min_numbers_to_compare && difference < max_difference * count &&
      std::min(of_lower, of_upper) > min_entropy && std::max(of_lower, of_upper) < max_entropy)
    return "its numbers seem to have one byte each: as uint16, their upper bytes are like their lower bytes; "
           "write them with .astype('<u2')";
  return "";
}

/// True if the file begins with 16 bytes or more of UTF-8 without control characters, or with 256 bytes of
/// any other encoding that has the characters of ASCII. The first 4 KiB decide.
bool is_text(std::string_view file) {
  constexpr std::size_t enough = 256;
  const std::string_view start = file.substr(0, 4096);
  const auto is_control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && (c < '\t' || c > '\r')) || byte == 0x7f;
  };
  if (start.size() < 16 || std::ranges::any_of(start, is_control)) return false;
  if (start.size() >= enough) return true;
  // Each byte that is not UTF-8 makes the line longer. The last character may be cut off.
  constexpr std::array<std::size_t, 4> cut_off = {0, 1, 2, 3};
  return std::ranges::any_of(cut_off, [&](std::size_t bytes) {
    const std::string_view whole = start.substr(0, start.size() - bytes);
    return one_line(whole).size() == whole.size();
  });
}

/// Throws InputError if the file begins like one of the kinds. `purpose`: what it is not.
void refuse_kinds(const std::filesystem::path& path, std::string_view file, std::span<const OtherKind> kinds,
                  std::string_view purpose) {
  const auto kind =
      std::ranges::find_if(kinds, [&](const OtherKind& k) { return file.starts_with(k.begins); });
  if (kind != kinds.end())
    throw InputError(fmt::format("{}: {}, not {}{}", path.string(), kind->name, purpose, kind->remedy));
}

/// Throws InputError if the file is of a known kind that holds no flat numbers. As tokens, its bytes would be
/// numbers without a meaning.
void refuse_other_kinds(const std::filesystem::path& path, std::string_view file) {
  const auto fail = [&](std::string_view name, std::string_view remedy) {
    return InputError(fmt::format("{}: {}, not a file of token ids{}", path.string(), name, remedy));
  };
  refuse_kinds(path, file, packed_kinds, "a file of token ids");
  refuse_kinds(path, file, other_kinds, "a file of token ids");
  if (file.size() > 262 && file.substr(257, 5) == "ustar") throw fail("is a tar archive", unpack);
  if (is_pickle(file)) throw fail("is a pickle of Python", save_alone);
  if (is_arrow_stream(file)) throw fail("is a stream of Arrow", save_alone);
  if (file.size() > 10 && file.substr(5, 3) == "\0\0\0"sv && file.substr(8, 2) == "{\"")
    throw fail("is a safetensors file", save_alone);
  if (holds_floats<float>(file) || holds_floats<double>(file))
    throw fail("holds floats", "; save its tokens as whole numbers, with .astype('uint32')");
  if (!is_text(file)) return;
  const std::size_t first = file.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && (file[first] == '[' || file[first] == '{');
  throw fail(is_json ? "is JSON" : "is text",
             is_json ? "; write its numbers with numpy.save"
                     : "; data.kind: text reads its bytes, a tokenizer makes token ids");
}

}  // namespace

TokenLayout text_layout(const std::filesystem::path& path, std::span<const unsigned char> file) {
  refuse_kinds(path, {reinterpret_cast<const char*>(file.data()), file.size()}, packed_kinds, "a text");
  return {0, 1, file.size()};
}

TokenLayout token_layout(const std::filesystem::path& path, std::span<const unsigned char> file,
                         TokenType type) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (is_magic_number(number_at(file, 0))) return layout_behind_header(path, file);
  if (bytes.starts_with(numpy_magic)) return numpy_layout(path, bytes);
  refuse_other_kinds(path, bytes);
  constexpr std::array<std::size_t, token_type_words.size()> sizes = {2, 4, 8};
  const std::size_t size = sizes[index(type)];
  if (const auto problem = size == 2 ? problem_of_uint16(bytes) : ""sv; !problem.empty())
    throw InputError(
        fmt::format("{}: {}; if they are not, save them with numpy.save", path.string(), problem));
  if (file.size() % size == 0) return {0, size, file.size() / size, type == TokenType::int64};
  const std::string problem = size == 2 ? "an odd number" : fmt::format("not a multiple of {}", size);
  throw InputError(
      fmt::format("{}: has {} bytes, {}, and no magic number; expected flat {}, or a header with the magic "
                  "number {}",
                  path.string(), file.size(), problem, token_type_words[index(type)], known_kinds));
}

}  // namespace starpipe::model
