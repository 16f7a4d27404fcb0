// All host collectives, one line each; every algorithm has its own file. plan/algorithms.h chooses between them.
//
// Counts are elements of dtype `d`. Every member of the comm calls a function with matching arguments. It returns when
// this member's output is complete and its input may be reused. An error leaves the job unusable (the engine ends it).
#pragma once
#include <functional>
#include <span>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// ---- allreduce ------------------------------------------------------------------------------------------------------------
// Over shared memory (comm.node), directly on segments without packing. allreduce_shm picks one of its algorithms by
// size.
Status allreduce_shm(Comm&, const Segments&, DType, ReduceOp, const Scale&);

// Over links: in place on contiguous memory of `count` elements. 16-bit floats accumulate in float32 (see each file).
Status allreduce_recursive_doubling(Comm&, std::byte* data, size_t count, DType, ReduceOp);
Status allreduce_rabenseifner(Comm&, std::byte* data, size_t count, DType, ReduceOp);
// Direct reduce-scatter, then allgather.
Status allreduce_pairwise(Comm&, std::byte* data, size_t count, DType, ReduceOp);
Status allreduce_ring(Comm&, std::byte* data, size_t count, DType, ReduceOp);       // ring of segments
// For comparison; never in the table.
Status allreduce_naive(Comm&, std::byte* data, size_t count, DType, ReduceOp);      // every rank sends to every rank
Status allreduce_driver(Comm&, std::byte* data, size_t count, DType, ReduceOp);  // gather at rank 0, then broadcast
Status allreduce_tree(Comm&, std::byte* data, size_t count, DType, ReduceOp);       // binomial reduce, then broadcast
// Hierarchical: reduce inside the hosts, then slices between them, then gather inside (comm.local, comm.cross). The
// first two take 16-bit floats `d` whose sums over the ranks of a host are already computed: float32 sums are sent, and
// overwritten, until the result.
Status allreduce_pairwise_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
Status allreduce_rabenseifner_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
Status allreduce_hierarchical(Comm&, std::byte* data, size_t count, DType, ReduceOp);
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
Status broadcast_shm(Comm&, std::byte* data, size_t bytes, int root);
Status broadcast_tree(Comm&, std::byte* data, size_t bytes, int root);  // binomial tree
Status broadcast_pipelined(Comm&, std::byte* data, size_t bytes, int root);  // chain of segments

// allgather: `in` has bytes[rank] bytes; `out` receives the parts of all ranks in rank order. `in` may already be in
// its place in `out`.
Status allgather_shm(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
Status allgather_ring(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes);

// alltoall: send_bytes[i] bytes to rank i, consecutive in `in`; recv_bytes[i] from rank i, consecutive in `out`.
Status alltoall_shm(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out, std::span<const size_t> recv_bytes);
Status alltoall_pairwise(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                         std::span<const size_t> recv_bytes);

// reducescatter: `in` holds sum(counts) elements; rank i receives the counts[i] elements of its part at `out`.
Status reducescatter_shm(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp, const Scale&);
Status reducescatter_pairwise(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp, const Scale&);

// barrier: return only after all members have entered.
Status barrier_shm(Comm&);
Status barrier_dissemination(Comm&);

}  // namespace hvd
