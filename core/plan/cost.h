// Predicted duration of a collective, by Hockney's model with a term for arithmetic: alpha seconds per message, beta seconds per byte sent,
// gamma seconds per byte combined. Predictions help to choose thresholds and to judge measurements; they are not used at run time.
#pragma once
#include <string_view>

#include "plan/algorithms.h"

namespace hvd {

// Parameters of the cost model, in seconds.
struct CostModel {
  // Costs of communication over links, usually between hosts: seconds per message (alpha), per byte in one direction (beta), and per byte
  // of one operand (gamma). The defaults are rounded values for 10 Gbit/s Ethernet.
  double alpha = 30e-6;
  double beta = 0.8e-9;
  double gamma = 0.1e-9;
  // Costs of communication through shared memory: seconds until another core sees a store (local_alpha), and per byte copied (local_beta).
  double local_alpha = 0.3e-6;
  double local_beta = 0.1e-9;
};

struct Cost {
  Collective collective;
  Algorithm algorithm;
  // Cost formula. P is the number of ranks, H the number of hosts, and L = P / H. N is the number of bytes of the operation on one rank:
  // gathered by an allgather, sent by an alltoall. a, b and g are alpha, beta and gamma; a' and b' are local_alpha and local_beta.
  std::string_view formula;
  double (*seconds)(const WorldShape&, double bytes, const CostModel&);
};

// Return the cost, or null if the collective does not have this algorithm.
const Cost* cost_of(Collective, Algorithm);

// Predict the duration in seconds. It is 0 for a single rank.
double predict(Collective, Algorithm, const WorldShape&, size_t bytes, const CostModel& = {});

}  // namespace hvd
