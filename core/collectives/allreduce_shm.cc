// Allreduce over shared memory, directly from and to the users' tensors. There are three algorithms: direct, sliced,
// and in place (arena_offsets.h). All three add in the canonical order (reduce.h), so the algorithm, the chunk size and
// fusion do not change any bit of the result.
//
// The direct algorithm is for small data. Every rank stages its whole vector and reduces all vectors itself, with one synchronisation. Cost
// for n ranks (notation of shm.h): a + R m + W m + X (n - 1) m.
//
// The sliced algorithm is for larger data. In each round, every rank owns one of n slices and stages the slices that it does not own. It
// reduces its own slice from its own memory and the others' staging areas, and writes the result to its output and its staging area.
// Finally, it copies out the others' results. Each round has two synchronisations, which are hidden by working on three rounds at a time.
// Cost: 2 a (once) + R m + W m + 2 X m (n - 1) / n.
//
// The sliced algorithm is reduce-scatter followed by allgather (Thakur, Rabenseifner, Gropp: Optimization of Collective
// Communication Operations in MPICH, 2005). Both use direct exchange, split into chunks that stay in the cache.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/ticks.h"
#include "collectives/arena_offsets.h"
#include "collectives/collectives.h"
#include "collectives/kernels.h"
#include "collectives/shm.h"

namespace hvd {
namespace {

// Size in bytes of a block within a slice. A block is reduced to the staging area and then copied to the output while it is still in the L1
// cache. Large data come from memory, whose prefetching needs longer blocks.
constexpr size_t kShmBlockBytes = 4 << 10, kLargeBlockBytes = 16 << 10;

// Minimum size in bytes of an allreduce of which successive ones use successive places of the staging area, and size of the range of
// places. A store waits for the caches of ranks that have recently read the same place. Twice the range, one in each half of the staging
// area, exceeds a core's own cache (L2), but not a shared one.
constexpr size_t kRotateFrom = 8 << 10, kRotateBytes = 1 << 20;

// Minimum size in bytes of an allreduce that can bypass the cache, and size of the blocks with which both kinds of stores are measured.
constexpr size_t kBypassFrom = 1 << 10, kTrialBytes = 4 << 10;

// Return the offset of the place for data of `bytes` bytes.
size_t rotation(const NodeGroup::Stage& stage, size_t bytes) {
  if (bytes < kRotateFrom || bytes > kRotateBytes / 2 || stage.bytes < 4 * kRotateBytes) return 0;
  const size_t place = round_up(bytes, kLine);
  return stage.turn % (kRotateBytes / place) * place;
}

class Job {
 public:
  Job(const Comm& comm, const Segments& data, DType d, ReduceOp op, const Scale& s)
      : node_(*comm.node), tuning_(comm.tuning), data_(data), dtype_(d), op_(op), scale_(s), element_(size_of(d)),
        large_(data.total * element_ >= tuning_.stream_bytes), bypass_(data.total * element_ >= kBypassFrom && node_.stores().bypass()),
        staged_(data), reduced_(data), copied_(data), sources_(node_.size()) {}

  Status direct(const SubBuffers& subs);
  // Store this rank's data of a round of the direct algorithm.
  void stage_direct(const SubBuffers& subs, size_t round = 0) {
    const size_t step = subs.bytes / element_;
    copy_in(subs.at(node_.me(), round), round * step, std::min(step, data_.total - round * step));
    fence();
  }
  // Run the sliced algorithm. If only some ranks have their tensors in arenas, set `*mixed` to true and do nothing else.
  Status sliced(const SubBuffers& subs, const ArenaOffsets& offsets, bool* mixed);

 private:
  Status unstaged(const SubBuffers& subs, bool* mixed);
  int count_in_arenas(const SubBuffers& subs) const;
  bool streams(const Segments::Piece& piece) const { return large_ && piece.in != piece.out; }
  void copy_in(std::byte* to, size_t first, size_t count);
  // Complete stores that bypass the cache, before they are published.
  void fence() const {
    if (bypass_) stream_fence();
  }
  void store(std::byte* to, size_t first, size_t count, bool bypass);
  void copy_out(const std::byte* from, size_t first, size_t count);
  void reduce_own(const SubBuffers& subs, size_t round, size_t at, size_t first, size_t count);

  NodeGroup& node_;
  const Tuning& tuning_;
  const Segments& data_;
  DType dtype_;
  ReduceOp op_;
  Scale scale_;
  size_t element_;
  bool large_;
  // True if data are stored in the staging area with stores that bypass the cache.
  bool bypass_;
  PieceWalk staged_, reduced_, copied_;
  std::vector<const std::byte*> sources_;
};

// Store elements [first, first + count) of this rank's data in its staging area. From time to time, measure both kinds of stores with the
// first two blocks.
void Job::copy_in(std::byte* to, size_t first, size_t count) {
  const size_t block = kTrialBytes / element_;
  if (count >= 2 * block && node_.stores().due()) {
    uint64_t at[3] = {ticks()};
    for (size_t i = 0; i < 2; ++i) {
      store(to, first, block, i == 1);
      drain_stores();
      to += block * element_, first += block, count -= block;
      at[i + 1] = ticks();
    }
    node_.stores().record(static_cast<double>(at[1] - at[0]), static_cast<double>(at[2] - at[1]));
  }
  store(to, first, count, bypass_);
}

void Job::store(std::byte* to, size_t first, size_t count, bool bypass) {
  staged_.each(first, count, [&](const Segments::Piece& piece, size_t within, size_t offset, size_t n) {
    if (piece.in && bypass) {
      stage_bytes(to + offset * element_, piece.in + within * element_, n * element_);
    } else if (piece.in) {
      copy_bytes(to + offset * element_, piece.in + within * element_, n * element_, false);
    } else {
      memset(to + offset * element_, 0, n * element_);
    }
  });
}

void Job::copy_out(const std::byte* from, size_t first, size_t count) {
  copied_.each(first, count, [&](const Segments::Piece& piece, size_t within, size_t offset, size_t n) {
    if (piece.out) copy_bytes(piece.out + within * element_, from + offset * element_, n * element_, streams(piece));
  });
}

Status Job::direct(const SubBuffers& subs) {
  const size_t step = subs.bytes / element_;
  auto take_out = [&](size_t k) -> Status {
    HVD_RETURN_IF_ERROR(node_.await_all(k + 1));
    reduced_.each(k * step, std::min(step, data_.total - k * step),
                  [&](const Segments::Piece& piece, size_t within, size_t offset, size_t n) {
      if (!piece.out) return;
      for (int m = 0; m < node_.size(); ++m) sources_[m] = subs.at(m, k) + offset * element_;
      if (piece.in) sources_[node_.me()] = piece.in + within * element_;
      reduce_many(dtype_, op_, piece.out + within * element_, sources_, n, scale_);
    });
    return {};
  };
  return run_rounds(node_, ceil_div(data_.total, step), subs.stage.published, [&](size_t k) { stage_direct(subs, k); }, take_out);
}

// Reduce this rank's slice of a round: elements [first, first + count) of the data. In each rank's sub-buffer, the slice begins at element
// `at`.
void Job::reduce_own(const SubBuffers& subs, size_t round, size_t at, size_t first, size_t count) {
  reduced_.each(first, count, [&](const Segments::Piece& piece, size_t within, size_t offset, size_t n) {
    const size_t block = (large_ ? kLargeBlockBytes : kShmBlockBytes) / element_;
    for (size_t done = 0; done < n; done += block) {
      const size_t some = std::min(block, n - done);
      const size_t there = (at + offset + done) * element_, here = (within + done) * element_;
      for (int m = 0; m < node_.size(); ++m) sources_[m] = subs.at(m, round) + there;
      std::byte* own = subs.at(node_.me(), round) + there;
      if (piece.in) {
        sources_[node_.me()] = piece.in + here;
      } else {
        memset(own, 0, some * element_);
      }
      if (bypass_ && piece.out && !streams(piece)) {
        reduce_many(dtype_, op_, piece.out + here, sources_, some, scale_);
        stage_bytes(own, piece.out + here, some * element_);
        continue;
      }
      reduce_many(dtype_, op_, own, sources_, some, scale_);
      if (piece.out) copy_bytes(piece.out + here, own, some * element_, streams(piece));
    }
  });
}

// Each rank announces these stages in order: round 0 staged, round 1 staged, round 0 reduced, round 2 staged, round 1 reduced, ..., last
// round reduced. It copies out the results of a round one round later, when most likely all ranks have reduced the round.
//
// With kSlicedDepth = 5 sub-buffers, a rank can reuse a sub-buffer without waiting. Staging round m overwrites round m - 5. By then, this
// rank has reduced round m - 2, so all ranks have staged round m - 2. They do that only after copying out round m - 5.
constexpr size_t kSlicedDepth = 5;

// Return the arena offsets of rank `member`, which are valid once the rank has published its first stage.
const ArenaOffsets* offsets_of(const SubBuffers& subs, int member) {
  return reinterpret_cast<const ArenaOffsets*>(subs.stage.staging[member]);
}

// Number of stages to count for an attempt that is abandoned because only some ranks have their tensors in arenas. No rank has published
// more by then, so all counters become equal again.
constexpr uint64_t kMixedStages = 4;

int Job::count_in_arenas(const SubBuffers& subs) const {
  int n = 0;
  for (int m = 0; m < node_.size(); ++m) n += offsets_of(subs, m)->count > 0;
  return n;
}

Status Job::unstaged(const SubBuffers& subs, bool* mixed) {
  node_.publish();
  HVD_RETURN_IF_ERROR(node_.await_all(1));
  if (count_in_arenas(subs) < node_.size()) {
    *mixed = true;
    node_.finish_at(kMixedStages);
    return {};
  }
  std::vector<const ArenaOffsets*> offsets;
  for (int m = 0; m < node_.size(); ++m) offsets.push_back(offsets_of(subs, m));
  HVD_RETURN_IF_ERROR(allreduce_in_place(node_, data_, offsets.data(), 2, dtype_, op_, scale_));
  node_.finish();
  return {};
}

Status Job::sliced(const SubBuffers& subs, const ArenaOffsets& offsets, bool* mixed) {
  *reinterpret_cast<ArenaOffsets*>(subs.stage.staging[node_.me()]) = offsets;
  if (offsets.count > 0) return unstaged(subs, mixed);
  const size_t members = node_.size(), me = node_.me(), total = data_.total;
  const size_t unit = kLine / element_;
  const size_t most = round_down(std::min(subs.bytes / members, tuning_.chunk_bytes) / element_, unit);
  const size_t rounds = ceil_div(total, most * members);
  const size_t slice = round_up(ceil_div(total, rounds * members), unit);
  auto start = [&](size_t k, size_t m) { return std::min(total, (k * members + m) * slice); };
  auto staged_stage = [&](size_t k) { return k == 0 ? 1 : 2 * k; };
  auto reduced_stage = [&](size_t k) { return k + 1 < rounds ? 2 * k + 3 : 2 * rounds; };

  auto stage_in = [&](size_t k) {
    const size_t first = start(k, 0), own = start(k, me), next = start(k, me + 1), end = start(k + 1, 0);
    copy_in(subs.at(me, k), first, own - first);
    copy_in(subs.at(me, k) + (next - first) * element_, next, end - next);
    fence();
    node_.publish();
  };
  auto take_results = [&](size_t k) -> Status {
    for (size_t m = 0; m < members; ++m) {
      if (m == me) continue;
      HVD_RETURN_IF_ERROR(node_.await(static_cast<int>(m), reduced_stage(k)));
      const size_t first = start(k, m);
      copy_out(subs.at(static_cast<int>(m), k) + (first - start(k, 0)) * element_, first, start(k, m + 1) - first);
    }
    return {};
  };

  stage_in(0);
  for (size_t k = 0; k < rounds; ++k) {
    if (k + 1 < rounds) stage_in(k + 1);
    HVD_RETURN_IF_ERROR(node_.await_all(staged_stage(k)));
    if (k == 0 && count_in_arenas(subs) > 0) {
      *mixed = true;
      node_.finish_at(kMixedStages);
      return {};
    }
    reduce_own(subs, k, start(k, me) - start(k, 0), start(k, me), start(k, me + 1) - start(k, me));
    fence();
    node_.publish();
    if (k > 0) HVD_RETURN_IF_ERROR(take_results(k - 1));
  }
  HVD_RETURN_IF_ERROR(take_results(rounds - 1));
  node_.finish();
  return {};
}

// True if the direct algorithm reduces this amount of data.
bool is_direct(const Comm& comm, const Segments& data, DType d) {
  return data.total * size_of(d) <= 2 * comm.tuning.direct_bytes / static_cast<size_t>(comm.node->size());
}

void alone(const Segments& data, DType d, const Scale& s) {
  for (const Segments::Piece& piece : data.pieces) {
    if (!piece.out) continue;
    if (!piece.in) memset(piece.out, 0, piece.count * size_of(d));
    scale(d, piece.out, piece.in ? piece.in : piece.out, piece.count, s);
  }
}

}  // namespace

bool stage_allreduce_shm(Comm& comm, const Segments& data, DType d) {
  if (comm.size == 1 || data.total == 0 || !is_direct(comm, data, d)) return false;
  NodeGroup::Stage stage;
  if (!comm.node->begin_early(&stage)) return false;
  const SubBuffers subs(stage, kDepth, rotation(stage, data.total * size_of(d)));
  if (!subs.check(1).ok()) {
    comm.node->withdraw();
    return false;
  }
  Job(comm, data, d, ReduceOp::sum, {}).stage_direct(subs);
  comm.node->publish_early();
  return true;
}

Status allreduce_shm(Comm& comm, const Segments& data, DType d, ReduceOp op, const Scale& s) {
  if (data.total == 0) return {};
  if (comm.size == 1) {
    alone(data, d, s);
    return {};
  }
  NodeGroup& node = *comm.node;
  NodeGroup::Stage stage;
  HVD_RETURN_IF_ERROR(node.begin(&stage));
  Job job(comm, data, d, op, s);
  const size_t place = rotation(stage, data.total * size_of(d));
  if (is_direct(comm, data, d)) {
    const SubBuffers subs(stage, kDepth, place);
    HVD_RETURN_IF_ERROR(subs.check(1));
    return job.direct(subs);
  }
  const SubBuffers subs(stage, kSlicedDepth, sizeof(ArenaOffsets) + place);
  HVD_RETURN_IF_ERROR(subs.check(node.size()));
  bool mixed = false;
  HVD_RETURN_IF_ERROR(job.sliced(subs, arena_offsets_of(node, data, size_of(d)), &mixed));
  if (!mixed) return {};
  // Repeat the reduction without arenas: some tensors are outside of them, and all ranks must use the same algorithm.
  HVD_RETURN_IF_ERROR(node.begin(&stage));
  return Job(comm, data, d, op, s).sliced(SubBuffers(stage, kSlicedDepth, sizeof(ArenaOffsets)), ArenaOffsets{}, &mixed);
}

}  // namespace hvd
