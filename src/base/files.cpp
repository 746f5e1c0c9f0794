// SPDX-License-Identifier: Apache-2.0
#include "base/files.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "base/messages.hpp"
#include "base/signals.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::generic_category().message(error); }

/// True if bytes go straight into `target`, which has `status`: into a device or a pipe, and through a link
/// whose file has no name any more (/dev/stdout when standard output is a file that was deleted). A rename
/// would replace the device or the link.
bool is_written_directly(const fs::path& target, const fs::file_status& status) {
  std::error_code error;
  return fs::exists(status) && (!fs::is_regular_file(status) || fs::is_symlink(target, error));
}

/// True if a file that cannot be created, with this error, was named wrongly. A full disk is not the user's
/// mistake.
bool is_users_mistake(int error) {
  return error != ENOSPC && error != EDQUOT && error != EIO && error != EMFILE && error != ENFILE;
}

/// Returns the suffix with its letters as they are. The file ".json" has the suffix ".json", unlike with
/// `fs::path::extension`.
std::string written_suffix(const fs::path& file) {
  const std::string name = file.filename().string();
  const auto dot = name.rfind('.');
  return dot == std::string::npos || name == "." || name == ".." ? "" : name.substr(dot);
}

/// The maximum number of bytes that `read_file` reads.
constexpr std::uintmax_t max_text_bytes = std::uintmax_t{1} << 30U;

/// True if a person may type the file's content.
bool is_terminal(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return true;  // opening it again tells why
  const bool terminal = ::isatty(descriptor) == 1;
  ::close(descriptor);
  return terminal;
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : "."; }

/// Returns the path under which a file is written before it gets its name. A name may have as many bytes as a
/// file system allows (255 in Linux), so this path uses only the beginning of it, and a hash.
fs::path temporary_of(const fs::path& target) {
  constexpr std::size_t max_bytes = 200;
  std::string name = target.filename().string();
  if (name.size() > max_bytes) {
    name = fmt::format("{}.{:x}", name.substr(0, max_bytes), hash_of(std::string_view(name), hash_start));
  }
  return folder_of(target) / fmt::format(".{}.{}.tmp", name, ::getpid());
}

}  // namespace

std::string read_file(const fs::path& file) {
  const auto refuse = [&](std::string_view why) {
    throw InputError(fmt::format("{}: {}", file.string(), why));
  };
  const auto require_size = [&](std::uintmax_t bytes) {
    if (bytes > max_text_bytes) refuse("has more than 1 GiB; a text file is expected");
  };
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::is_directory(status)) refuse("is a directory");
  if (fs::is_block_file(status) || (fs::is_character_file(status) && !is_terminal(file)))
    refuse("is a device; a file or a pipe is expected");
  if (fs::is_regular_file(status)) require_size(fs::file_size(file, error));
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  std::array<char, 1 << 16> part;
  const bool open = stream.is_open();
  while (open && (stream.read(part.data(), part.size()), stream.gcount() > 0)) {
    text.append(part.data(), static_cast<std::size_t>(stream.gcount()));
    require_size(text.size());  // a pipe has no size, and may have no end
  }
  if (!open || stream.bad()) throw InputError(fmt::format("{}: {}", file.string(), reason(errno)));
  return text;
}

std::string readable_part(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(text).str();
}

std::string suffix_of(const fs::path& file) {
  std::string suffix = written_suffix(file);
  for (char& c : suffix) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return suffix;
}

void require_suffix(std::string_view option, const fs::path& file,
                    std::span<const std::string_view> suffixes) {
  const std::string suffix = suffix_of(file);
  if (suffix.empty() || std::ranges::find(suffixes, suffix) != suffixes.end()) return;
  throw InputError(fmt::format("{}: {} ends in {}, expected {} or no suffix", option, file.string(),
                               written_suffix(file), fmt::join(suffixes, ", ")));
}

fs::path target_of(const fs::path& file) {
  constexpr int max_links = 40;  // as in Linux
  std::error_code error;
  fs::path target = fs::canonical(file, error);
  if (!error) return target;
  target = file;
  if (fs::exists(file, error)) return target;  // a link to a file that has no name any more
  for (int links = 0; links < max_links && fs::is_symlink(target, error); ++links)
    target = target.parent_path() / fs::read_symlink(target, error);
  return target;
}

bool is_standard_output(const fs::path& file) { return file == "-" || file == "/dev/stdout"; }

void require_writable(std::string_view option, const fs::path& file) {
  const auto fail = [&](const std::string& why) {
    throw InputError(fmt::format("{}: cannot write {}: {}", option, file.string(), why));
  };
  if (file.empty()) throw InputError(fmt::format("{}: the name of the file is empty", option));
  if (is_standard_output(file)) return;
  std::error_code error;
  const fs::path target = target_of(file);
  const fs::file_status status = fs::status(target, error);
  if (error == std::errc::filename_too_long) fail(error.message());
  if (fs::is_directory(status)) fail("it is a directory");
  if (fs::exists(status) && ::access(target.c_str(), W_OK) != 0) fail(reason(errno));
  if (is_written_directly(target, status)) return;
  if (!fs::exists(status) && fs::is_symlink(target, error)) fail(reason(ELOOP));
  const fs::path folder = folder_of(target);
  if (!fs::exists(folder, error)) fail(fmt::format("directory {} does not exist", folder.string()));
  if (!fs::is_directory(folder, error)) fail(fmt::format("{} is not a directory", folder.string()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail(fmt::format("directory {}: {}", folder.string(), reason(errno)));
  }
  // Rights are not all: no file can be made in /proc, or in a directory with the attribute "immutable".
  const fs::path trial = temporary_of(target);
  const RemovedOnSignal removed(trial);
  const int descriptor = ::open(trial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0 && is_users_mistake(errno))
    fail(fmt::format("no file can be made in {}: {}", folder.string(), reason(errno)));
  if (descriptor < 0) return;
  ::close(descriptor);
  fs::remove(trial, error);
}

void write_file(std::string_view option, const fs::path& file, std::string_view text) {
  write_file(option, file, [text](std::ostream& stream) {
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  });
}

void write_file(std::string_view option, const fs::path& file,
                const std::function<void(std::ostream&)>& write) {
  if (is_standard_output(file)) {
    std::ostringstream text;
    write(text);
    print(text.view());
    return;
  }
  const HeldPipeSignal held;
  NewFile made(std::string(option), file);
  std::ofstream stream = made.open();
  errno = 0;
  write(stream);
  stream.close();
  if (!stream) throw std::runtime_error(made.problem(errno != 0 ? errno : EIO));
  made.finish();
}

bool is_replaced(const fs::path& file) {
  std::error_code error;
  const fs::path target = target_of(file);
  return !is_standard_output(file) && !is_written_directly(target, fs::status(target, error));
}

NewFile::NewFile(std::string option, fs::path file)
    : option_(std::move(option)), file_(std::move(file)), target_(target_of(file_)), temporary_(target_) {
  require_writable(option_, file_);
  if (!is_replaced(file_)) return;
  temporary_ = temporary_of(target_);
  removed_ = std::make_unique<RemovedOnSignal>(temporary_);
}

NewFile::~NewFile() {
  std::error_code error;
  if (removed_) fs::remove(temporary_, error);
}

std::string NewFile::problem(int error) const {
  return fmt::format("{}: cannot write {}: {}", option_, file_.string(), reason(error));
}

std::ofstream NewFile::open() const {
  errno = 0;
  std::ofstream stream(temporary_, std::ios::binary);
  if (!stream && is_users_mistake(errno)) throw InputError(problem(errno));
  if (!stream) throw std::runtime_error(problem(errno));
  std::error_code error;
  const fs::file_status status = fs::status(target_, error);
  if (removed_ && fs::exists(status)) fs::permissions(temporary_, status.permissions(), error);
  return stream;
}

void NewFile::finish() {
  if (!removed_) return;
  std::error_code error;
  fs::rename(temporary_, target_, error);
  if (error) {
    // A file that is mounted alone, or belongs to another user in /tmp, may be written but not replaced.
    fs::copy_file(temporary_, target_, fs::copy_options::overwrite_existing, error);
    if (error) {
      removed_.reset();
      throw std::runtime_error(
          fmt::format("{}; its contents are in {}", problem(error.value()), temporary_.string()));
    }
    fs::remove(temporary_, error);
  }
  removed_.reset();
}

PlacedWriter::PlacedWriter(std::string_view option, const fs::path& name, const fs::path& file)
    : problem_(fmt::format("{}: cannot write {}", option, name.string())),
      descriptor_(::open(file.c_str(), O_WRONLY | O_CLOEXEC)) {
  require(descriptor_ >= 0);
}

PlacedWriter::~PlacedWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PlacedWriter::require(bool holds) const {
  if (!holds) throw std::runtime_error(fmt::format("{}: {}", problem_, reason(errno)));
}

void PlacedWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {  // Linux writes at most 2 GiB at once
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    require(written > 0);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void PlacedWriter::close() { require(::close(std::exchange(descriptor_, -1)) == 0 || errno == EINTR); }

void print(std::string_view text) {
  print_message("");  // no progress line stays above the result, or in front of it
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw std::runtime_error(fmt::format("cannot write to standard output: {}", reason(errno)));
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "starpipe-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

namespace {

std::runtime_error write_error(const fs::path& file, int error) {
  return std::runtime_error(fmt::format("cannot write {}: {}", file.string(), reason(error)));
}

// Waits until an open file is on the disk. Returns the error, or 0, also for a file system that has nothing
// to wait for.
int sync(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    return errno == EINVAL || errno == ENOTSUP ? 0 : errno;
  }
  return 0;
}

// `flags`: of open, besides the flags for reading.
void sync(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) throw write_error(path, errno);
  const int error = sync(descriptor);
  ::close(descriptor);
  if (error != 0) throw write_error(path, error);
}

}  // namespace

DurableFile::DurableFile(std::filesystem::path file) : file_(std::move(file)) {
  if (::unlink(file_.c_str()) != 0 && errno != ENOENT) throw write_error(file_, errno);
  descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw write_error(file_, errno);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(file_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30U;  // Linux writes at most 2 GiB at once
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), max_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw write_error(file_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void DurableFile::finish() {
  if (const int error = sync(descriptor_); error != 0) throw write_error(file_, error);
  // Network file systems report a full disk when a file is closed.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    const int error = errno;
    ::unlink(file_.c_str());
    throw write_error(file_, error);
  }
}

void sync_folder(const std::filesystem::path& folder) { sync(folder, O_DIRECTORY); }

void sync_file(const std::filesystem::path& file) { sync(file, O_NONBLOCK); }

}  // namespace starpipe
