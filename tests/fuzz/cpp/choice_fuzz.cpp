// SPDX-License-Identifier: BSD-3-Clause
// A choice of primitives is refused with an Error, or it survives its text; so do primitives'
// names.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ir/layout.h"
#include "ir/primitive.h"
#include "ops/choice.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torchalgo;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto layout = parse_layout(text); layout && to_string(*layout) != text) std::abort();
  if (!matches_name(text, text)) std::abort();
  Choice choice;
  try {
    choice = parse_choice(text);
  } catch (const Error&) {
    return 0;
  }
  if (parse_choice(to_string(choice)) != choice) std::abort();
  for (const ChoiceEntry& entry : choice) {
    const std::string plain = without_krsc(entry.name);
    if (without_krsc(plain) == plain && without_krsc(with_krsc(plain)) != plain) std::abort();
  }
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda})
    (void)requested(choice, Direction::kForward, kind, DType::kF32);
  return 0;
}
