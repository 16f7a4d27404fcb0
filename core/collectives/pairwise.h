// Round schedule of algorithms in which every rank talks directly to every other rank.
//
// Ranks a and b meet in round (a + b) mod size, which is the same for both. In one round a rank meets one other rank
// (or itself). So a window of consecutive rounds can run at once, and no rank waits for one that is in a later window:
// in the earliest unfinished window of the job, both sides of every transfer are present. Windows bound the number of
// active connections.
#pragma once
#include <algorithm>
#include <array>

#include "collectives/flow.h"

namespace hvd {

inline constexpr int kPairwiseWindow = 16;

// Return the bytes that each of `ranks` ranks may have waiting at the rank that reduces them: about 16 MiB altogether,
// a multiple of every element size.
constexpr size_t block_of_contributions(size_t ranks) { return std::clamp<size_t>((16u << 20) / ranks / 64 * 64, 64 << 10, 2 << 20); }

// Run transfer(peer), which returns a Transfer, for each other rank.
template <class F>
Status with_every_peer(Comm& comm, F transfer) {
  for (int begin = 0; begin < comm.size; begin += kPairwiseWindow) {
    std::array<Transfer, kPairwiseWindow> window;
    size_t n = 0;
    for (int round = begin; round < std::min(begin + kPairwiseWindow, comm.size); ++round) {
      const int peer = (round - comm.rank + comm.size) % comm.size;
      if (peer != comm.rank) window[n++] = transfer(peer);
    }
    HVD_RETURN_IF_ERROR(exchange_all(comm, std::span(window.data(), n)));
  }
  return {};
}

}  // namespace hvd
