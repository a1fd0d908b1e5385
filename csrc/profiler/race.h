// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

namespace torchalgo {

/// One of several tasks that are timed in the same rounds.
struct Racer {
  std::size_t place = 0;  // what it competes for: a plan needs the fastest of each place only
  std::vector<double> calm, disturbed;  // its samples so far, see calm.h
  bool is_out = false;                  // no more of them: it failed, lost or is known well
  bool has_lost = false;

  /// Its samples that count: the calm ones, and, where these are too few, the others too.
  [[nodiscard]] std::vector<double> counted() const;
};

/// How many samples a race gives at least to what did not lose, and at most to anything.
struct RaceLength {
  int usual = 9;  // enough, unless they differ by more than kNoisy
  int most = 27;
  static RaceLength of(int rounds) { return {rounds, 3 * rounds}; }
};

/// A racer that was slower than this many times the fastest of its place in two calm samples, or in
/// four, has lost; and in two, one slower than kFar times the fastest of all.
inline constexpr double kLostAfterTwo = 1.25, kLostAfterFour = 1.12, kFar = 2.0;

/// The faster half of five samples lies within kSure: more would say the same. Of `usual` samples
/// within kNoisy: good enough.
inline constexpr double kSure = 0.02, kNoisy = 0.05;
inline constexpr std::size_t kLeastSure = 5;

/// Takes those out that need no further round.
///
/// Other programs only ever add time, so that least samples are compared, and a racer is known well
/// by its faster half. Racers of one place that have not lost go on until all of them are known, in
/// the same rounds: then what disturbs one disturbs its rivals.
void judge(std::vector<Racer>& racers, const RaceLength& length);

/// How many samples each racer gets if all of its samples take ns[i]: for replays of recorded
/// costs.
[[nodiscard]] std::vector<int> samples_without_noise(const std::vector<std::size_t>& places,
                                                     const std::vector<double>& ns,
                                                     const RaceLength& length);

}  // namespace torchalgo
