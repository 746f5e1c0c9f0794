// SPDX-License-Identifier: Apache-2.0
#include "model/data/mapped_file.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starpipe/base/error.hpp"

namespace starpipe::model {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& problem) { return InputError(path.string() + ": " + problem); };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw fail(std::string("cannot be read: ") + std::strerror(errno));
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  const bool regular = known && S_ISREG(status.st_mode);
  const std::size_t size = regular ? static_cast<std::size_t>(status.st_size) : 0;
  void* const address = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0) : nullptr;
  const int error = errno;
  close(file);
  if (!regular) throw fail("is not a file");
  if (address == MAP_FAILED) throw fail(std::string("cannot be read: ") + std::strerror(error));
  bytes_ = {static_cast<const unsigned char*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
}

}  // namespace starpipe::model
