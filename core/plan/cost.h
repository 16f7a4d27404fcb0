// What a collective should take, after the model of Hockney with a term for arithmetic: alpha seconds for a message, beta for a
// byte on the wire, gamma for a byte combined. For choosing thresholds and for judging measurements; nothing is decided by it at
// run time. Pure.
#pragma once
#include <string_view>

#include "plan/algorithms.h"

namespace hvd {

struct CostModel {
  // Between hosts, or over links in general. The defaults are round figures for 10 Gbit/s Ethernet.
  double alpha = 30e-6;   // s per message
  double beta = 0.8e-9;   // s per byte, one direction
  double gamma = 0.1e-9;  // s per byte of one operand
  // Inside a host, through shared memory.
  double local_alpha = 0.3e-6;  // s until a store is seen by another core
  double local_beta = 0.1e-9;   // s per byte copied
};

struct Cost {
  Collective collective;
  Algorithm algorithm;
  // P ranks, H hosts, L = P / H, N bytes: the operation's on one rank (allgather: gathered; alltoall: sent).
  // a, b, g: alpha, beta, gamma; a', b': the same inside a host.
  std::string_view formula;
  double (*seconds)(const WorldShape&, double bytes, const CostModel&);
};

// Null when the collective has no such algorithm.
const Cost* cost_of(Collective, Algorithm);

// Seconds; 0 for a world of one rank.
double predict(Collective, Algorithm, const WorldShape&, size_t bytes, const CostModel& = {});

}  // namespace hvd
