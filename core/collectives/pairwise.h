// The schedule of algorithms in which every rank talks to every other one directly.
//
// Rank a and rank b meet in round (a + b) mod size. That number is the same for both, and in one round a rank meets one other (or
// itself), so a window of consecutive rounds can run at once without any rank waiting for one that is in a later window: the
// earliest unfinished window of the world always has both sides of each of its transfers present. Windows bound the number of
// connections that are busy at a time.
#pragma once
#include <algorithm>
#include <array>

#include "collectives/flow.h"

namespace hvd {

inline constexpr int kPairwiseWindow = 16;

// Bytes that each of `ranks` ranks may have waiting at one that reduces them: about 16 MiB altogether, a multiple of every element.
constexpr size_t block_of_contributions(size_t ranks) { return std::clamp<size_t>((16u << 20) / ranks / 64 * 64, 64 << 10, 2 << 20); }

// transfer(peer) -> Transfer for each other rank.
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
