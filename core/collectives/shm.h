// Code shared by the collectives over shared memory: sub-buffers, and iteration over the tensors of a fused operation.
// Half of a staging area is divided into sub-buffers, which the rounds of a collective use in turn.
//
// In all these collectives, a rank copies what others need into its staging area, chunk by chunk. The other ranks read each chunk while it
// is in the last-level cache. A chunk of m bytes costs a + m * c_in + m * c_out. Here, a is the time until another core sees a store (0.1
// to 0.2 us), and c the time to copy a byte. The cost formulas in these files count the traffic of one rank: R bytes read and W bytes
// written in user memory, and X bytes read from other ranks' staging areas.
//
// A rank writes only to its own staging area, so NodeGroup::begin() waits only for the ranks that read this area.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// Size of a cache line in bytes. Slices start at multiples of this size.
inline constexpr size_t kLine = 64;

constexpr size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr size_t round_down(size_t n, size_t multiple) { return n / multiple * multiple; }
constexpr size_t ceil_div(size_t n, size_t d) { return (n + d - 1) / d; }

// Outputs of at least Tuning::stream_bytes are written with stores that bypass the cache, except in place (the memory was just read).
// Otherwise, they would evict useful data, and every store would first read its cache line.

// Each rank divides half of its staging area into sub-buffers. Round k uses sub-buffer k % count, at the same offset on
// every rank.
struct SubBuffers {
  NodeGroup::Stage stage;
  size_t count;
  // Size of one sub-buffer in bytes; always a multiple of kLine.
  size_t bytes;

  // Size in bytes of the space before the first sub-buffer.
  size_t skip;

  SubBuffers(const NodeGroup::Stage& s, size_t n, size_t skipped = 0)
      : stage(s), count(n), bytes(s.bytes > skipped ? round_down((s.bytes - skipped) / n, kLine) : 0), skip(skipped) {}
  std::byte* at(int member, size_t round) const { return stage.staging[member] + skip + (round % count) * bytes; }
  // Check that a sub-buffer split into `parts` parts has at least one cache line for each part.
  Status check(size_t parts) const {
    if (bytes / parts >= kLine) return {};
    return Status(Code::invalid_argument, "the staging area must have at least " + std::to_string(2 * (skip + count * kLine * parts)) +
                                              " bytes for " + std::to_string(parts) + " local ranks, got " +
                                              std::to_string(2 * stage.bytes));
  }
};

// Run a collective with one stage per round. Every rank stages round k + 1 before it reads the data of round k, so that
// ranks rarely wait for each other.
//
// stage_in(k) stores this rank's data of round k in sub-buffer k % kDepth. take_out(k) waits until the other ranks have
// reached stage k + 1, reads their data, and returns a Status.
//
// `staged` is the number of rounds (0 or 1) that the caller has staged and published before the call.
//
// With kDepth = 4 sub-buffers, a rank can reuse a sub-buffer without waiting. Staging round m overwrites round m - 4. By then, this rank
// has read round m - 2, so all ranks have published round m - 2. They do that only after reading round m - 4.
inline constexpr size_t kDepth = 4;

template <class StageIn, class TakeOut>
Status run_rounds(NodeGroup& node, size_t rounds, size_t staged, StageIn&& stage_in, TakeOut&& take_out) {
  if (staged == 0 && rounds > 0) {
    stage_in(size_t{0});
    node.publish();
  }
  for (size_t k = 0; k < rounds; ++k) {
    if (k + 1 < rounds) {
      stage_in(k + 1);
      node.publish();
    }
    HVD_RETURN_IF_ERROR(take_out(k));
  }
  node.finish();
  return {};
}

// Iterator over the tensors in a range of Segments. It remembers its position, so ascending ranges need no search.
class PieceWalk {
 public:
  explicit PieceWalk(const Segments& data) : data_(data) {}

  // Call visit(piece, first element in the piece, first element in the range, number of elements).
  template <class Visit>
  void each(size_t first, size_t count, Visit&& visit) {
    if (first < start_) piece_ = start_ = 0;
    for (size_t done = 0; done < count;) {
      const Segments::Piece& piece = data_.pieces[piece_];
      const size_t within = first + done - start_;
      if (within >= piece.count) {
        start_ += piece.count;
        ++piece_;
        continue;
      }
      const size_t some = std::min(piece.count - within, count - done);
      visit(piece, within, done, some);
      done += some;
    }
  }

 private:
  const Segments& data_;
  size_t piece_ = 0, start_ = 0;
};

}  // namespace hvd
