// All collectives of the host, one line each; a file per algorithm. See plan/algorithms.h for who uses which.
//
// Shapes: counts are elements of dtype `d`. Every function is called by all members of the comm with matching arguments and returns
// when this member's output is complete and its input may be reused. An error leaves the job unusable (the engine ends it).
#pragma once
#include <functional>
#include <span>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// ---- allreduce ------------------------------------------------------------------------------------------------------------
// Over shared memory (comm.node): on segments, no packing. allreduce_shm picks one of the two by size.
Status allreduce_shm(Comm&, const Segments&, DType, ReduceOp, const Scale&);

// Over links: in place on contiguous memory of `count` elements. 16-bit floats accumulate in float32 (see each header).
Status allreduce_recursive_doubling(Comm&, std::byte* data, size_t count, DType, ReduceOp);
Status allreduce_rabenseifner(Comm&, std::byte* data, size_t count, DType, ReduceOp);
Status allreduce_pairwise(Comm&, std::byte* data, size_t count, DType, ReduceOp);   // direct reduce-scatter, then allgather
Status allreduce_ring(Comm&, std::byte* data, size_t count, DType, ReduceOp);       // segmented
// To be compared with; not in the table.
Status allreduce_naive(Comm&, std::byte* data, size_t count, DType, ReduceOp);      // everything to everybody
Status allreduce_driver(Comm&, std::byte* data, size_t count, DType, ReduceOp);     // everything to rank 0, and back
Status allreduce_tree(Comm&, std::byte* data, size_t count, DType, ReduceOp);       // binomial reduce, then broadcast
// Inside the hosts, between them on slices, inside (comm.local, comm.cross).
// The same two for 16-bit floats `d` whose sums over the ranks of a host are there already: float32 travels, and is lost, until the result.
Status allreduce_pairwise_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
Status allreduce_rabenseifner_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
Status allreduce_hierarchical(Comm&, std::byte* data, size_t count, DType, ReduceOp);
// The same with another allreduce in place, in the same order, between the hosts; null: those over links.
using BetweenHosts = std::function<Status(Comm& cross, std::byte* data, size_t count, DType, ReduceOp)>;
Status allreduce_hierarchical_by(const BetweenHosts&, Comm&, std::byte* data, size_t count, DType, ReduceOp);

// Adasum, on segments, each of which is a tensor; in or out of place; over links or in comm.node. Floats, a size that is a power of two.
Status allreduce_adasum(Comm&, const Segments&, DType, const Scale&);

// Sums of float32 that travel in a smaller form; on segments, in or out of place. `residuals`: for each piece `count` values that are
// added to the contribution first and receive what its coding loses, or null; empty: all null. Over links or in comm.node, and inside
// the hosts in float32, between them coded (comm.local, comm.cross).
Status allreduce_compressed(Comm&, const Segments&, std::span<float* const> residuals, WireFormat, const Scale&);
Status allreduce_compressed_hierarchical(Comm&, const Segments&, std::span<float* const> residuals, WireFormat, const Scale&);

// ---- the others -----------------------------------------------------------------------------------------------------------
// broadcast: `bytes` bytes at `data` from set rank `root`.
Status broadcast_shm(Comm&, std::byte* data, size_t bytes, int root);
Status broadcast_tree(Comm&, std::byte* data, size_t bytes, int root);  // binomial
Status broadcast_pipelined(Comm&, std::byte* data, size_t bytes, int root);  // chain of segments

// allgather: my `bytes[rank]` bytes at `in`; `out` receives everybody's in rank order. in may already lie in its place in out.
Status allgather_shm(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
Status allgather_ring(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes);

// alltoall: send_bytes[i] bytes to rank i, consecutive in `in`; recv_bytes[i] from rank i, consecutive in `out`.
Status alltoall_shm(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out, std::span<const size_t> recv_bytes);
Status alltoall_pairwise(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                         std::span<const size_t> recv_bytes);

// reducescatter: `in` holds sum(counts) elements; rank i receives elements of its part, counts[i], at `out`.
Status reducescatter_shm(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp, const Scale&);
Status reducescatter_pairwise(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp, const Scale&);

Status barrier_shm(Comm&);
Status barrier_dissemination(Comm&);

}  // namespace hvd
