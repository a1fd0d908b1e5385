// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/race.h"

#include <algorithm>
#include <limits>
#include <map>

namespace torchalgo {
namespace {

constexpr double kNothing = std::numeric_limits<double>::infinity();

double least(const std::vector<double>& ns) {
  return ns.empty() ? kNothing : *std::min_element(ns.begin(), ns.end());
}

double least(const Racer& racer) { return std::min(least(racer.calm), least(racer.disturbed)); }

std::vector<double> joined(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

// Returns the spread of the faster half of some samples, relative to the least one.
double spread(std::vector<double> ns) {
  const auto middle = ns.begin() + static_cast<std::ptrdiff_t>((ns.size() + 1) / 2 - 1);
  std::nth_element(ns.begin(), middle, ns.end());
  const double first = *std::min_element(ns.begin(), middle + 1);
  return first > 0 ? *middle / first - 1 : 0;
}

bool is_known(const Racer& racer, const RaceLength& length) {
  const std::vector<double> ns = racer.counted();
  if (ns.size() >= static_cast<std::size_t>(length.most)) return true;
  if (ns.size() < kLeastSure) return false;
  const bool is_usual = ns.size() >= static_cast<std::size_t>(length.usual);
  return spread(ns) <= (is_usual ? kNoisy : kSure);
}

bool loses(const Racer& racer, double best_of_place, double best) {
  // If many samples are disturbed, disturbed ones count too.
  const bool is_calm = racer.disturbed.size() < 2 * kLeastSure;
  const std::vector<double> ns = is_calm ? racer.calm : racer.counted();
  if (ns.size() < 2) return false;
  const double own = least(ns);
  if (ns.size() < 4) return own > kLostAfterTwo * best_of_place || own > kFar * best;
  return own > kLostAfterFour * best_of_place;
}

}  // namespace

std::vector<double> Racer::counted() const {
  const std::size_t enough = has_lost ? 2 : kLeastSure;
  return calm.size() < enough ? joined(calm, disturbed) : calm;
}

void judge(std::vector<Racer>& racers, const RaceLength& length) {
  std::map<std::size_t, double> best_of;
  double best = kNothing;
  for (const Racer& racer : racers) {
    auto [place, is_new] = best_of.try_emplace(racer.place, kNothing);
    place->second = std::min(place->second, least(racer));
    best = std::min(best, least(racer));
  }
  std::map<std::size_t, bool> is_decided;  // all that have not lost are known
  for (Racer& racer : racers) {
    if (racer.is_out) continue;
    racer.is_out = racer.has_lost = loses(racer, best_of[racer.place], best);
    if (racer.is_out) continue;
    auto [place, is_new] = is_decided.try_emplace(racer.place, true);
    place->second = place->second && is_known(racer, length);
  }
  for (Racer& racer : racers) {
    if (!racer.is_out) racer.is_out = is_decided[racer.place];
  }
}

std::vector<int> samples_without_noise(const std::vector<std::size_t>& places,
                                       const std::vector<double>& ns, const RaceLength& length) {
  std::vector<Racer> racers(ns.size());
  for (int round = 0; round < length.most; ++round) {
    for (std::size_t i = 0; i < ns.size(); ++i) {
      racers[i].place = places[i];
      if (!racers[i].is_out) racers[i].calm.push_back(ns[i]);
    }
    judge(racers, length);
  }
  std::vector<int> counts;
  for (const Racer& racer : racers) counts.push_back(static_cast<int>(racer.calm.size()));
  return counts;
}

}  // namespace torchalgo
