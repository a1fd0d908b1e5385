// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

namespace torchalgo {

/// Writes `module` to `path` as torch::jit::Module::save does, but never a part of it. The bytes go
/// to a new file in the same folder, to the disk, and then under the name. A failure or a crash
/// leaves `path` as it was. A link stays a link; a device or a pipe is written directly.
///
/// @param extra_files  further entries of the archive; torch::jit::load returns them.
/// @throws torchalgo::Error (a std::runtime_error) with the system's reason if the file cannot be
///         written. torch's own save ends the process if the disk is full.
void save(const torch::jit::Module& module, const std::string& path,
          const torch::jit::ExtraFilesMap& extra_files = {});

}  // namespace torchalgo
