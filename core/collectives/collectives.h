// Declarations of all host collectives. A table for each collective maps algorithms to functions.
// plan/algorithm_table.h describes when each algorithm is chosen.
//
// Counts are numbers of elements of dtype `d`. Every rank of the comm calls a function with matching arguments. The
// function returns when this rank's output is complete and its input can be reused. After an error the job is unusable,
// and the engine shuts it down.
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

// Return the function that implements `algorithm`. A test checks that the tables below contain every algorithm of
// plan/algorithm_table.h.
template <class Function, size_t kCount>
Function* implementation(const Implementation<Function> (&table)[kCount], Algorithm algorithm) {
  for (const Implementation<Function>& one : table) {
    if (one.algorithm == algorithm) return one.run;
  }
  return table[0].run;
}

// ---- Allreduce algorithms -------------------------------------------------------------------------------------------

// Allreduce over shared memory (comm.node). It works directly on the memory of the tensors, without packing them. The
// function selects one of several algorithms by size.
Status allreduce_shm(Comm&, const Segments&, DType, ReduceOp, const Scale&);
// Store this rank's data of the next allreduce_shm() in shared memory and publish them, before it is certain that the
// allreduce runs. Return false, with nothing changed, if the data are too large or the memory is still in use.
bool stage_allreduce_shm(Comm&, const Segments&, DType);

// Allreduce over links, in place on `count` contiguous elements. 16-bit floats accumulate in float32.
using Allreduce = Status(Comm&, std::byte* data, size_t count, DType, ReduceOp);
Allreduce allreduce_recursive_doubling, allreduce_rabenseifner;
// Allreduce as a direct reduce-scatter, followed by a direct allgather.
Allreduce allreduce_pairwise;
Allreduce allreduce_ring;
Allreduce allreduce_hierarchical;
// Algorithms for comparison only; they are never chosen automatically. In the naive algorithm, every rank sends to
// every rank. The driver algorithm gathers at rank 0 and broadcasts. The tree algorithm does a binomial reduce, then a
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

// Hierarchical allreduce: reduce within hosts (comm.local), reduce slices between hosts (comm.cross), then gather within hosts.
// The two functions below are the step between hosts for 16-bit floats of type `d`. They overwrite `sums`, the float32 sums of each host,
// and write to `result`.
Status allreduce_pairwise_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
Status allreduce_rabenseifner_sums(Comm&, float* sums, std::byte* result, size_t count, DType d, ReduceOp);
// Hierarchical allreduce with a custom in-place allreduce between hosts. The custom function must add the ranks' values
// in the same order as the built-in algorithms. A null function selects the built-in algorithms.
using BetweenHosts = std::function<Status(Comm& cross, std::byte* data, size_t count, DType, ReduceOp)>;
Status allreduce_hierarchical_by(const BetweenHosts&, Comm&, std::byte* data, size_t count, DType, ReduceOp);

// Adasum of floats, separately for each tensor in the segments, in place or out of place. It uses links or comm.node. The number of ranks
// must be a power of two.
Status allreduce_adasum(Comm&, const Segments&, DType, const Scale&);

// Sum float32 tensors, in place or out of place, with messages encoded in fewer bits. `residuals` is empty or has one pointer per piece,
// which can be null. A residual's `count` values are added to this rank's contribution and replaced by its quantization error. The first
// function uses links or comm.node. The second uses float32 within hosts (comm.local) and encoded data between hosts (comm.cross).
Status allreduce_compressed(Comm&, const Segments&, std::span<float* const> residuals, WireFormat, const Scale&);
Status allreduce_compressed_hierarchical(Comm&, const Segments&, std::span<float* const> residuals, WireFormat, const Scale&);

// ---- Algorithms of the other collectives ----------------------------------------------------------------------------

// Broadcast `bytes` bytes at `data` from the rank with index `root` in the set.
using Broadcast = Status(Comm&, std::byte* data, size_t bytes, int root);
Broadcast broadcast_shm;
Broadcast broadcast_tree;
// Broadcast along a chain of ranks that forward segments.
Broadcast broadcast_pipelined;
inline constexpr Implementation<Broadcast> kBroadcasts[] = {
    {Algorithm::tree, broadcast_tree}, {Algorithm::pipelined, broadcast_pipelined}, {Algorithm::shm, broadcast_shm}};

// Allgather: `in` has bytes[rank] bytes, and `out` receives the contributions of all ranks in rank order. `in` may
// already be in its final position within `out`.
using Allgather = Status(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
Allgather allgather_shm, allgather_ring;
inline constexpr Implementation<Allgather> kAllgathers[] = {{Algorithm::shm, allgather_shm}, {Algorithm::ring, allgather_ring}};

// All-to-all: `in` holds send_bytes[i] bytes for each rank i, and `out` receives recv_bytes[i] bytes from each rank i,
// both in rank order.
using Alltoall = Status(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out, std::span<const size_t> recv_bytes);
Alltoall alltoall_shm, alltoall_pairwise;
inline constexpr Implementation<Alltoall> kAlltoalls[] = {{Algorithm::shm, alltoall_shm}, {Algorithm::pairwise, alltoall_pairwise}};

// Reduce-scatter: `in` holds sum(counts) elements, and rank i receives counts[i] elements of the result at `out`.
using Reducescatter = Status(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp, const Scale&);
Reducescatter reducescatter_shm, reducescatter_pairwise;
inline constexpr Implementation<Reducescatter> kReducescatters[] = {{Algorithm::shm, reducescatter_shm},
                                                                    {Algorithm::pairwise, reducescatter_pairwise}};

// Barrier: these functions return only after all ranks have entered.
using Barrier = Status(Comm&);
Barrier barrier_shm, barrier_dissemination;
inline constexpr Implementation<Barrier> kBarriers[] = {{Algorithm::shm, barrier_shm}, {Algorithm::dissemination, barrier_dissemination}};

}  // namespace hvd
