// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

namespace torchalgo {

/// One of several tasks that are timed in the same rounds.
struct Racer {
  std::size_t place = 0;  // racers of one place compete; a plan needs the fastest of each place
  std::vector<double> calm, disturbed;  // undisturbed and disturbed samples so far, see calm.h
  bool is_out = false;  // takes no more samples: it failed, lost, or its time is known
  bool has_lost = false;

  /// Returns the samples that count: the undisturbed ones, or all samples if these are too few.
  [[nodiscard]] std::vector<double> counted() const;
};

/// The number of samples that a racer gets.
struct RaceLength {
  int usual = 9;  // enough, unless they differ by more than kNoisy
  int most = 27;  // limit for every racer
  static RaceLength of(int rounds) { return {rounds, 3 * rounds}; }
};

/// A racer has lost if its fastest sample is slower than this factor times the fastest sample of
/// its place: kLostAfterTwo after two or three undisturbed samples, kLostAfterFour after four.
/// After two or three it has also lost if it is slower than kFar times the fastest of all.
inline constexpr double kLostAfterTwo = 1.25, kLostAfterFour = 1.12, kFar = 2.0;

/// A racer's time is known if the faster half of its samples lies within kSure of the least one
/// (kLeastSure samples or more), or within kNoisy (`usual` samples or more).
inline constexpr double kSure = 0.02, kNoisy = 0.05;
inline constexpr std::size_t kLeastSure = 5;

/// Sets is_out of the racers that need no further round.
///
/// Other programs can only add time. So racers are compared by their least samples, and a racer's
/// time is known by its faster half. The racers of one place that have not lost continue until the
/// times of all of them are known. They run in the same rounds, so that a disturbance affects all
/// of them.
void judge(std::vector<Racer>& racers, const RaceLength& length);

/// Returns the number of samples that each racer gets if every sample of racer i takes ns[i]. It
/// serves to replay recorded costs.
[[nodiscard]] std::vector<int> samples_without_noise(const std::vector<std::size_t>& places,
                                                     const std::vector<double>& ns,
                                                     const RaceLength& length);

}  // namespace torchalgo
