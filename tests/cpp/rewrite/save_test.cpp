// SPDX-License-Identifier: BSD-3-Clause
#include "rewrite/save.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/jit/serialization/import.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>

#include "base/error.h"

namespace torchalgo {
namespace {

namespace fs = std::filesystem;

// A folder that is removed in the end.
struct Folder {
  fs::path path;
  Folder() {
    std::string text = (fs::temp_directory_path() / "torchalgo_save_XXXXXX").string();
    path = ::mkdtemp(text.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::ptrdiff_t count() const {
    return std::distance(fs::directory_iterator(path), fs::directory_iterator());
  }
};

// While it lives, no file of this process grows beyond `bytes`, as on a disk that is full then.
struct FullDisk {
  rlimit before = {};
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit = {bytes, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
};

torch::jit::Module make_module(std::int64_t elements, float value) {
  torch::jit::Module module("Model");
  module.register_buffer("data", at::full({elements}, value));
  module.define("def forward(self):\n    return self.data\n");
  return module;
}

float first_value(const fs::path& path) {
  return torch::jit::load(path.string()).forward({}).toTensor()[0].item<float>();
}

// The text of the Error that `save` throws.
std::string failure(const torch::jit::Module& module, const fs::path& path) {
  try {
    save(module, path.string());
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Save, WritesWhatTorchLoads) {
  const Folder folder;
  const fs::path path = folder.path / "model.pt";
  save(make_module(10, 1), path.string());
  save(make_module(10, 2), path.string(), {{"plan.json", "a plan"}});
  torch::jit::ExtraFilesMap extra = {{"plan.json", ""}};
  const torch::jit::Module loaded = torch::jit::load(path.string(), std::nullopt, extra);
  EXPECT_EQ(extra["plan.json"], "a plan");
  EXPECT_EQ(first_value(path), 2);
  EXPECT_EQ(folder.count(), 1);
}

TEST(Save, LeavesTheOldFileWhereTheDiskIsFull) {
  const Folder folder;
  const fs::path path = folder.path / "model.pt";
  save(make_module(10, 1), path.string());
  {
    const FullDisk full(100'000);
    EXPECT_EQ(failure(make_module(1'000'000, 2), path),
              "TA2001 save: cannot write " + path.string() + ": File too large");
  }
  EXPECT_EQ(first_value(path), 1);
  EXPECT_EQ(folder.count(), 1);
}

TEST(Save, ThrowsTheSystemsReason) {
  const Folder folder;
  const torch::jit::Module module = make_module(10, 1);
  EXPECT_EQ(failure(module, "/dev/full"),
            "TA2001 save: cannot write /dev/full: No space left on device");
  EXPECT_TRUE(fs::exists("/dev/full"));
  const fs::path missing = folder.path / "none" / "model.pt";
  EXPECT_EQ(failure(module, missing),
            "TA2001 save: cannot write " + missing.string() + ": No such file or directory");
  EXPECT_NE(failure(module, folder.path).find("is a folder"), std::string::npos);
  EXPECT_EQ(folder.count(), 0);
}

TEST(Save, ReplacesTheFileThatALinkNames) {
  const Folder folder;
  const fs::path path = folder.path / "model.pt", link = folder.path / "latest.pt";
  save(make_module(10, 1), path.string());
  fs::create_symlink(path, link);
  save(make_module(10, 2), link.string());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(first_value(path), 2);
}

}  // namespace
}  // namespace torchalgo
