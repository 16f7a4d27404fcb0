// What the collectives over shared memory have in common: cutting a half of the staging area into sub-buffers that rounds use in turn,
// and walking over the tensors of a fused operation.
//
// The idea of all of them: a member copies what others need into its staging area, chunk by chunk, and the others read it there; a chunk
// is still in the last-level cache then. Cost of a chunk of m bytes: a + m * c_in + m * c_out, where a is the time for a store to be
// seen by another core (0.1 to 0.2 us) and c the time per byte of a copy. The formulas below count the traffic of one member: R bytes
// read and W bytes written in user memory, X bytes read from others' staging.
//
// All of them follow one rule: a member writes into its own staging area only. Hence NodeGroup::begin() needs to know nobody's plans
// but those of the readers of one's own area.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

inline constexpr size_t kLine = 64;  // bytes; slices start on cache lines of their own

constexpr size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr size_t round_down(size_t n, size_t multiple) { return n / multiple * multiple; }
constexpr size_t ceil_div(size_t n, size_t d) { return (n + d - 1) / d; }

// From Tuning::stream_bytes of an output on, it is stored past the cache unless it has just been read (in place): it would only push
// out what is still needed, and a cached store reads the line first.

// Sub-buffers of the halves of all members. Round k uses number k % count, at the same offset on every member.
struct SubBuffers {
  NodeGroup::Stage stage;
  size_t count;
  size_t bytes;  // of one, a multiple of kLine

  size_t skip;   // bytes before the first

  SubBuffers(const NodeGroup::Stage& s, size_t n, size_t skipped = 0)
      : stage(s), count(n), bytes(s.bytes > skipped ? round_down((s.bytes - skipped) / n, kLine) : 0), skip(skipped) {}
  std::byte* at(int member, size_t round) const { return stage.staging[member] + skip + (round % count) * bytes; }
  // Each sub-buffer cut into `parts` must leave a cache line for each.
  Status check(size_t parts) const {
    if (bytes / parts >= kLine) return {};
    return Status(Code::invalid_argument, "staging area of " + std::to_string(2 * stage.bytes) + " bytes is too small for " +
                                              std::to_string(parts) + " local ranks; at least " +
                                              std::to_string(2 * (skip + count * kLine * parts)) + " bytes are needed");
  }
};

// The rounds of a collective with one stage a round: everybody stages round k + 1 before it takes out round k, so that a member rarely
// finds another one not ready.
//
//   stage_in(k)   stores my data of round k into sub-buffer k % kDepth
//   take_out(k)   waits for stage k + 1 of the members that it reads, and reads; returns a Status
//
// `staged`: how many rounds (0 or 1) the caller has staged and published itself.
//
// Why kDepth = 4 sub-buffers need no further waiting: round m overwrites what round m - 4 staged. When I stage round m I have taken out
// m - 2, so I have seen that everybody had published m - 2; a member does that after it has taken out m - 4.
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

// Visits the pieces that make up a range of Segments. Remembers where it was, so ranges that ascend cost no search.
class PieceWalk {
 public:
  explicit PieceWalk(const Segments& data) : data_(data) {}

  // visit(piece, first element within the piece, first element within the range, number of elements)
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
