// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace torchalgo {
namespace {

std::vector<std::filesystem::path> objects_of(const std::string& target) {
  const std::string folder = target + ".dir";
  std::vector<std::filesystem::path> objects;
  const auto all = std::filesystem::recursive_directory_iterator(TORCHALGO_BUILD_DIR "/csrc");
  for (const auto& entry : all) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".o" && path.string().find(folder) != std::string::npos) {
      objects.push_back(path);
    }
  }
  return objects;
}

std::vector<std::filesystem::path> kernel_objects(const std::string& isa) {
  return objects_of("ta_kernels_" + isa);
}

// "T name", ... of the object's symbols; `option` says which.
std::vector<std::string> symbols_of(const std::filesystem::path& object,
                                    const std::string& option) {
  const std::string command = "nm -C " + option + " '" + object.string() + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::vector<std::string> symbols;
  std::array<char, 4096> line = {};
  while (pipe && fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    const std::string text(line.data());
    if (text.size() > 17) symbols.push_back(text.substr(17, text.size() - 18));
  }
  return symbols;
}

class KernelObjects : public testing::TestWithParam<std::string> {};

// The linker keeps one copy of a weak function for all builds, perhaps one with instructions that
// the machine lacks.
TEST_P(KernelObjects, DefineNoWeakSymbol) {
  const auto objects = kernel_objects(GetParam());
  ASSERT_FALSE(objects.empty());
  for (const auto& object : objects) {
    const auto symbols = symbols_of(object, "--defined-only");
    EXPECT_FALSE(symbols.empty()) << object;
    for (const std::string& symbol : symbols) {
      EXPECT_EQ(std::string("WwVvu").find(symbol[0]), std::string::npos)
          << object << ": " << symbol;
    }
  }
}

TEST_P(KernelObjects, ExportOnlyTheNamespaceOfTheirInstructionSet) {
  const std::string prefix = " torchalgo::kernels::" + GetParam() + "_isa::";
  for (const auto& object : kernel_objects(GetParam())) {
    int exported = 0;
    for (const std::string& symbol : symbols_of(object, "--defined-only")) {
      if (symbol[0] != 'T' && symbol[0] != 'B') continue;  // functions and variables
      ++exported;
      EXPECT_EQ(symbol.compare(1, prefix.size(), prefix), 0) << object << ": " << symbol;
    }
    EXPECT_GT(exported, 0) << object;
  }
}

// at::parallel_for is a template: compiled without OpenMP it runs on one thread and says nothing.
TEST(RowObjects, AreCompiledWithOpenMpWhereTheyDivideWork) {
  const auto has = [](const std::vector<std::string>& symbols, const std::string& text) {
    return std::any_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) {
      return symbol.find(text) != std::string::npos;
    });
  };
  int parallel = 0;
  for (const auto& object : objects_of("ta_provider")) {
    const auto symbols = symbols_of(object, "--undefined-only");
    if (!has(symbols, "at::in_parallel_region")) continue;
    ++parallel;
    EXPECT_TRUE(has(symbols, "GOMP_parallel")) << object;
  }
  EXPECT_GT(parallel, 0);
}

INSTANTIATE_TEST_SUITE_P(AllBuilds, KernelObjects,
                         testing::Values("default", "avx2", "avx512", "avx512bf16", "amx"));

}  // namespace
}  // namespace torchalgo
