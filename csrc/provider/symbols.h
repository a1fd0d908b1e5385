// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dlfcn.h>

#include <functional>
#include <initializer_list>
#include <string>

namespace torchalgo {

/// Returns the first of these libraries that the process has mapped, or null if it has none. It
/// maps no library itself, so that a process never holds two of a kind. The handle is never closed,
/// because the mapping lasts as long as torch.
inline void* find_mapped_library(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

/// Looks up functions of a library and stores them in std::functions.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  /// Leaves `function` empty if the library lacks it.
  template <typename Signature>
  void find(std::function<Signature>& function, const char* name) {
    // POSIX promises that a function's address fits a void*.
    if (void* address = dlsym(library_, name)) function = reinterpret_cast<Signature*>(address);
  }

  /// Looks up a function that must exist. The first missing name is kept for missing().
  template <typename Signature>
  void require(std::function<Signature>& function, const char* name) {
    find(function, name);
    if (!function && missing_.empty()) missing_ = name;
  }

  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

}  // namespace torchalgo
