// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/calm.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>

namespace torchalgo {
namespace {

std::int64_t own_preemptions() {
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

double own_beat_ns() {
  constexpr int kLinks = 16'000;  // of 4 cycles each
  using Clock = std::chrono::steady_clock;
  volatile float link = 1.0F;
  const auto start = Clock::now();
  float value = link;
  for (int i = 0; i < kLinks; ++i) value = value * 0.999999F + 1e-7F;
  link = value;  // without this store the chain would be dead code
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

class HostCalm : public Calm {
 public:
  HostCalm(std::function<std::int64_t()> preemptions, std::function<double()> beat_ns)
      : preemptions_(std::move(preemptions)), beat_ns_(std::move(beat_ns)) {
    recent_.fill(std::numeric_limits<double>::infinity());
  }
  void begin() override { before_ = preemptions_(); }
  bool was_alone() override { return preemptions_() == before_; }
  bool is_steady() override {
    const double beat = beat_ns_();
    // The least of the recent times is the reference, so that a machine that stays slower does not
    // count as disturbed.
    recent_[turn_++ % recent_.size()] = beat;
    return beat <= kSlow * *std::min_element(recent_.begin(), recent_.end());
  }

 private:
  static constexpr double kSlow = 1.2;
  std::function<std::int64_t()> preemptions_;
  std::function<double()> beat_ns_;
  std::int64_t before_ = 0;
  std::array<double, 64> recent_{};
  std::size_t turn_ = 0;
};

}  // namespace

std::shared_ptr<Calm> host_calm(std::function<std::int64_t()> preemptions,
                                std::function<double()> beat_ns) {
  if (!preemptions) preemptions = own_preemptions;
  if (!beat_ns) beat_ns = own_beat_ns;
  return std::make_shared<HostCalm>(std::move(preemptions), std::move(beat_ns));
}

}  // namespace torchalgo
