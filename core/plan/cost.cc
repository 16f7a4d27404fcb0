#include "plan/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hvd {
namespace {

using M = CostModel;

double log2_floor(int p) { return std::bit_width(static_cast<unsigned>(p)) - 1; }
double log2_ceil(int p) { return std::bit_width(static_cast<unsigned>(p - 1)); }
double others(double p) { return (p - 1) / p; }
bool folds(int p) { return !std::has_single_bit(static_cast<unsigned>(p)); }

double doubling(int p, double n, const M& m) {
  const double fold = folds(p) ? 2 * (m.alpha + n * m.beta) + n * m.gamma : 0;
  return log2_floor(p) * (m.alpha + n * (m.beta + m.gamma)) + fold;
}
double halving(int p, double n, const M& m) {
  const double fold = folds(p) ? 2 * (m.alpha + n * m.beta) + n * m.gamma : 0;
  const int q = static_cast<int>(std::bit_floor(static_cast<unsigned>(p)));
  return 2 * log2_floor(p) * m.alpha + others(q) * n * (2 * m.beta + m.gamma) + fold;
}
double two_trips(int p, double n, const M& m) { return 2 * (p - 1) * m.alpha + others(p) * n * (2 * m.beta + m.gamma); }
double one_trip(int p, double n, const M& m) { return (p - 1) * m.alpha + others(p) * n * m.beta; }

// Return the cost of Adasum: that of Rabenseifner's algorithm, plus the sums of dot products over growing groups of ranks and a second pass
// over the received data.
double adasum(const WorldShape& w, double n, const M& m) {
  const double alpha = w.all_local ? m.local_alpha : m.alpha, beta = w.all_local ? 2 * m.local_beta : m.beta;
  const double q = log2_floor(w.size);
  return (2 * q + q * (q + 1) / 2) * alpha + others(w.size) * n * (2 * beta + 2 * m.gamma);
}

double hierarchical(const WorldShape& w, double n, const M& m) {
  const double l = std::max(1.0, static_cast<double>(w.size) / w.hosts);
  const double inside = 4 * m.local_alpha + n * (2 * m.local_beta + m.gamma);
  const double slice = n / l;
  const double large = folds(w.hosts) ? two_trips(w.hosts, slice, m) : halving(w.hosts, slice, m);
  return inside + std::min(doubling(w.hosts, slice, m), large);
}

// Return the cost of a pipelined chain, whose segments have the size of a connection's buffer.
double chain(const WorldShape& w, double n, const M& m) {
  constexpr double kSegment = 256 << 10;
  const double s = std::min(n, kSegment), segments = s > 0 ? std::ceil(n / s) : 0;
  return segments > 0 ? (w.size - 2 + segments) * (m.alpha + s * m.beta) : 0;
}

#define HVD_COST(collective, algorithm, formula, seconds) \
  {Collective::collective, Algorithm::algorithm, formula, \
   []([[maybe_unused]] const WorldShape& w, [[maybe_unused]] double n, [[maybe_unused]] const M& m) -> double { return seconds; }},
constexpr Cost kCosts[] = {HVD_COSTS(HVD_COST)};
#undef HVD_COST

}  // namespace

const Cost* cost_of(Collective c, Algorithm a) {
  for (const Cost& cost : kCosts) {
    if (cost.collective == c && cost.algorithm == a) return &cost;
  }
  return nullptr;
}

double predict(Collective c, Algorithm a, const WorldShape& world, size_t bytes, const CostModel& model) {
  const Cost* cost = cost_of(c, a);
  return cost && world.size > 1 ? cost->seconds(world, static_cast<double>(bytes), model) : 0;
}

}  // namespace hvd
