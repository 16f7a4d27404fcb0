#include "collectives/coded.h"

#include <cstring>

namespace hvd {

void load_contribution(const CodedRun& run, size_t first, size_t n, float* to) {
  if (run.in) {
    std::memcpy(to, run.in + first * sizeof(float), n * sizeof(float));
  } else {
    std::fill_n(to, n, 0.0f);
  }
  if (!run.residual) return;
  alignas(64) float carried[kCodedStep];
  std::memcpy(carried, run.residual + first * sizeof(float), n * sizeof(float));
  for (size_t i = 0; i < n; ++i) to[i] += carried[i];
}

}  // namespace hvd
