// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

namespace torchalgo::pbqp {

class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}

  [[nodiscard]] bool expired() const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    return !(elapsed.count() < seconds_);  // NaN expires at once
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_;
};

}  // namespace torchalgo::pbqp
