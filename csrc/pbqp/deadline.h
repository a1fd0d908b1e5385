// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace torchalgo::pbqp {

class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}

  [[nodiscard]] double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  [[nodiscard]] double remaining() const { return seconds_ - elapsed(); }

  [[nodiscard]] bool expired() const { return !(elapsed() < seconds_); }  // NaN expires at once

  /// Returns true if reading `cells` cells of tables takes at most half of the remaining time.
  [[nodiscard]] bool has_time_for(std::int64_t cells) const {
    constexpr double kSecondsPerCell = 2e-9;  // measured: 1 to 3 ns
    return cells == 0 || remaining() > 2 * kSecondsPerCell * static_cast<double>(cells);
  }

  [[nodiscard]] static Deadline never() {
    return Deadline(std::numeric_limits<double>::infinity());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_;
};

}  // namespace torchalgo::pbqp
