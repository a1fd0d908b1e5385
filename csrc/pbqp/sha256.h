// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

namespace torchalgo::pbqp {

/// The digest in 64 lower-case hexadecimal digits. Source: NIST FIPS 180-4, section 6.2.
[[nodiscard]] std::string sha256(std::string_view bytes);

}  // namespace torchalgo::pbqp
