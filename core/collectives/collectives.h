// All host collectives. For each, a table names its algorithms; plan/algorithm_table.h says when each is chosen.
//
// Counts are elements of dtype `d`. Every member of the comm calls a function with matching arguments. It returns when
// this member's output is complete and its input may be reused. An error leaves the job unusable (the engine ends it).
#pragma once
#include <functional>
#include <span>

#include "collectives/comm.h"
#include "collectives/reduce.h"
#include "plan/algorithms.h"

namespace hvd {

template <class Function>
struct Implementation {
  Algorithm algorithm;
  Function* run;
};

// Return the function of `algorithm`. A test checks that the tables below have all that plan/algorithm_table.h names.
template <class Function, size_t kCount>
Function* implementation(const Implementation<Function> (&table)[kCount], Algorithm algorithm) {
  for (const Implementation<Function>& one : table) {
    if (one.algorithm == algorithm) return one.run;
  }
  return table[0].run;
}

// ---- allreduce ------------------------------------------------------------------------------------------------------------
// Over shared memory (comm.node), directly on segments without packing. allreduce_shm picks one of its algorithms by
// size.
Status allreduce_shm(Comm&, const Segments&, DType, ReduceOp, const Scale&);

// Over links: in place on contiguous memory of `count` elements. 16-bit floats accumulate in float32 (see each file).
using Allreduce = Status(Comm&, std::byte* data, size_t count, DType, ReduceOp);
Allreduce allreduce_recursive_doubling, allreduce_rabenseifner;
Allreduce allreduce_pairwise;  // direct reduce-scatter, then allgather
Allreduce allreduce_ring;      // ring of segments
Allreduce allreduce_hierarchical;
// For comparison; never chosen. Every rank sends to every rank; gather at rank 0, then broadcast; binomial reduce, then
// broadcast.
Allreduce allreduce_naive, allreduce_driver, allreduce_tree;
inline constexpr Implementation<Allreduce> kAllreduces[] = {{Algorithm::recursive_doubling, allreduce_recursive_doubling},
                                                            {Algorithm::rabenseifner, allreduce_rabenseifner},
                                                            {Algorithm::pairwise, allreduce_pairwise},
                                                            {Algorithm::ring, allreduce_ring},
                                                            {Algorithm::hierarchical, allreduce_hierarchical},
                                                            {Algorithm::tree, allreduce_tree},
                                                            {Algorithm::driver, allreduce_driver},
                                                            {Algorithm::naive, allreduce_naive}};

// Hierarchical: reduce inside the hosts, then slices between them, then gather inside (comm.local, comm.cross). The
// first two take 16-bit floats `d` whose sums over the ranks of a host are already computed: float32 sums are sent, and
// overwritten, until the result.
Status allreduce_pairwise_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
Status allreduce_rabenseifner_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
// Hierarchical with a custom in-place allreduce between the hosts, which must use the same order; null: those over
// links.
using BetweenHosts = std::function<Status(Comm& cross, std::byte* data, size_t count, DType, ReduceOp)>;
Status allreduce_hierarchical_by(const BetweenHosts&, Comm&, std::byte* data, size_t count, DType, ReduceOp);

// Adasum on segments, each of which is one tensor; in or out of place, over links or in comm.node. Floats only; the
// size must be a power of two.
Status allreduce_adasum(Comm&, const Segments&, DType, const Scale&);

// Sums of float32 sent compressed; on segments, in or out of place. `residuals`: per piece, `count` values that are
// added to the contribution first and then receive its coding error, or null; empty: all null. The first runs over
// links or in comm.node; the second uses float32 inside the hosts and coded data between them (comm.local, comm.cross).
Status allreduce_compressed(Comm&, const Segments&, std::span<float* const> residuals, WireFormat, const Scale&);
Status allreduce_compressed_hierarchical(Comm&, const Segments&, std::span<float* const> residuals, WireFormat, const Scale&);

// ---- other collectives ----------------------------------------------------------------------------------------------
// broadcast: `bytes` bytes at `data`, from set rank `root`.
using Broadcast = Status(Comm&, std::byte* data, size_t bytes, int root);
Broadcast broadcast_shm;
Broadcast broadcast_tree;       // binomial tree
Broadcast broadcast_pipelined;  // chain of segments
inline constexpr Implementation<Broadcast> kBroadcasts[] = {
    {Algorithm::tree, broadcast_tree}, {Algorithm::pipelined, broadcast_pipelined}, {Algorithm::shm, broadcast_shm}};

// allgather: `in` has bytes[rank] bytes; `out` receives the parts of all ranks in rank order. `in` may already be in
// its place in `out`.
using Allgather = Status(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
Allgather allgather_shm, allgather_ring;
inline constexpr Implementation<Allgather> kAllgathers[] = {{Algorithm::shm, allgather_shm}, {Algorithm::ring, allgather_ring}};

// alltoall: send_bytes[i] bytes to rank i, consecutive in `in`; recv_bytes[i] from rank i, consecutive in `out`.
using Alltoall = Status(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out, std::span<const size_t> recv_bytes);
Alltoall alltoall_shm, alltoall_pairwise;
inline constexpr Implementation<Alltoall> kAlltoalls[] = {{Algorithm::shm, alltoall_shm}, {Algorithm::pairwise, alltoall_pairwise}};

// reducescatter: `in` holds sum(counts) elements; rank i receives the counts[i] elements of its part at `out`.
using Reducescatter = Status(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp, const Scale&);
Reducescatter reducescatter_shm, reducescatter_pairwise;
inline constexpr Implementation<Reducescatter> kReducescatters[] = {{Algorithm::shm, reducescatter_shm},
                                                                    {Algorithm::pairwise, reducescatter_pairwise}};

// barrier: return only after all members have entered.
using Barrier = Status(Comm&);
Barrier barrier_shm, barrier_dissemination;
inline constexpr Implementation<Barrier> kBarriers[] = {{Algorithm::shm, barrier_shm}, {Algorithm::dissemination, barrier_dissemination}};

}  // namespace hvd
