// SPDX-License-Identifier: BSD-3-Clause
#include "rewrite/save.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/export.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace torchalgo {
namespace {

// Writes a new file beside `path`, which is removed unless it is renamed to `path` in the end. A
// device or a pipe is written directly.
class PartFile {
 public:
  explicit PartFile(const std::string& path) : path_(target_of(path)), part_(part_of(path_)) {
    const int flags = part_ == path_ ? 0 : O_CREAT | O_EXCL;
    file_ = ::open(part_.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
    if (file_ < 0) fail(errno);
  }
  ~PartFile() {
    if (file_ >= 0) ::close(file_);
    if (!is_committed_ && part_ != path_) ::unlink(part_.c_str());
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // Keeps the first error and throws nothing: torch's writer calls this in its destructor too,
  // where an exception ends the process.
  void write(const char* data, std::size_t size) noexcept {
    while (size > 0 && error_ == 0) {
      const ssize_t written = ::write(file_, data, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) error_ = errno;
      if (written > 0) {
        data += written;
        size -= static_cast<std::size_t>(written);
      }
    }
  }

  void commit() {
    // Devices and pipes cannot be synced.
    if (error_ == 0 && ::fsync(file_) != 0 && errno != EINVAL && errno != EROFS) error_ = errno;
    if (::close(std::exchange(file_, -1)) != 0 && error_ == 0) error_ = errno;
    if (error_ == 0 && part_ != path_ && std::rename(part_.c_str(), path_.c_str()) != 0)
      error_ = errno;
    if (error_ != 0) fail(error_);
    is_committed_ = true;
    sync_folder();
  }

 private:
  // A link stays a link: the file that it names is replaced.
  static std::string target_of(const std::string& path) {
    std::error_code none;
    const auto target = std::filesystem::canonical(path, none);
    return none ? path : target.string();
  }

  // No other process and no other thread has the same name.
  static std::string part_of(const std::string& path) {
    static std::atomic<int> count = 0;
    std::error_code none;
    const bool is_device =
        std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none);
    return is_device ? path : fmt::format("{}.{}.{}.part", path, ::getpid(), count.fetch_add(1));
  }

  [[noreturn]] void fail(int error) const {
    throw Error(fmt::format("TA2001 save: cannot write {}: {}", path_, std::strerror(error)));
  }

  // Brings the new name to disk. Where the folder cannot be synced, the file is complete anyway.
  void sync_folder() const {
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    const int opened =
        ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) return;
    ::fsync(opened);
    ::close(opened);
  }

  std::string path_, part_;
  int file_ = -1;
  int error_ = 0;
  bool is_committed_ = false;
};

}  // namespace

void save(const torch::jit::Module& module, const std::string& path,
          const torch::jit::ExtraFilesMap& extra_files) {
  std::error_code none;
  TORCHALGO_CHECK(!path.empty() && path.back() != '/' && !std::filesystem::is_directory(path, none),
                  "TA2002 save: '{}' is a folder, expected a file such as model.pt", path);
  PartFile file(path);
  try {
    torch::jit::ExportModule(
        module,
        [&file](const void* data, std::size_t size) {
          file.write(static_cast<const char*>(data), size);
          return size;
        },
        extra_files);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(fmt::format("TA2003 save: torch cannot serialize the module for {}: {}", path,
                            text.substr(0, text.find('\n'))));
  }
  file.commit();
}

}  // namespace torchalgo
