// Algorithms of the collectives. The table lists where each algorithm can run, what it costs, and when it is chosen. To
// add an algorithm, add it here and in collectives/collectives.h, and implement it in a new file. Algorithms without a
// row in HVD_CHOICES exist only for comparison.
#pragma once

// clang-format off

// Table of algorithms: X(algorithm, where it can run).
#define HVD_ALGORITHMS(X)     \
  X(shm, local)               \
  X(recursive_doubling, links) \
  X(rabenseifner, links)      \
  X(pairwise, links)          \
  X(ring, links)              \
  X(hierarchical, nested)     \
  X(tree, links)              \
  X(pipelined, links)         \
  X(dissemination, links)     \
  X(naive, links)             \
  X(driver, links)            \
  X(halving, anywhere)

// Table of costs: X(collective, algorithm, formula, seconds). The formula uses the symbols of plan/cost.h. The seconds are an expression of
// the shape `w`, the bytes `n` and the model `m`, with the functions of plan/cost.cc.
#define HVD_COSTS(X)                                                                                                       \
  X(allreduce, shm, "2 a' + 2 N b' + N g", 2 * m.local_alpha + n * (2 * m.local_beta + m.gamma))                           \
  X(allreduce, recursive_doubling, "floor(log2 P) (a + N (b + g)) [+ 2 (a + N b) + N g unless P = 2^k]",                   \
    doubling(w.size, n, m))                                                                                                \
  X(allreduce, rabenseifner,                                                                                               \
    "2 floor(log2 P) a + (Q-1)/Q N (2 b + g), Q = 2^floor(log2 P) [+ 2 (a + N b) + N g unless P = 2^k]",                   \
    halving(w.size, n, m))                                                                                                 \
  X(allreduce, pairwise, "2 (P-1) a + (P-1)/P N (2 b + g)", two_trips(w.size, n, m))                                       \
  X(allreduce, ring, "2 (P-1) a + (P-1)/P N (2 b + g)", two_trips(w.size, n, m))                                           \
  X(allreduce, hierarchical, "4 a' + N (2 b' + g) + min(recursive doubling, rabenseifner or pairwise)(P = H, N / L)",      \
    hierarchical(w, n, m))                                                                                                 \
  X(allreduce, tree, "ceil(log2 P) (2 a + N (2 b + g))", log2_ceil(w.size) * (2 * m.alpha + n * (2 * m.beta + m.gamma)))   \
  X(allreduce, driver, "(P-1) (2 a + N (2 b + g))", (w.size - 1) * (2 * m.alpha + n * (2 * m.beta + m.gamma)))             \
  X(allreduce, naive, "(P-1) (a + N (b + g))", (w.size - 1) * (m.alpha + n * (m.beta + m.gamma)))                          \
  X(broadcast, shm, "a' + 2 N b'", m.local_alpha + 2 * n * m.local_beta)                                                   \
  X(broadcast, tree, "ceil(log2 P) (a + N b)", log2_ceil(w.size) * (m.alpha + n * m.beta))                                 \
  X(broadcast, pipelined, "(P - 2 + N/S) (a + S b), S = 256 KiB", chain(w, n, m))                                          \
  X(allgather, shm, "a' + 2 N b'", m.local_alpha + 2 * n * m.local_beta)                                                   \
  X(allgather, ring, "(P-1) a + (P-1)/P N b", one_trip(w.size, n, m))                                                      \
  X(alltoall, shm, "a' + 2 N b'", m.local_alpha + 2 * n * m.local_beta)                                                    \
  X(alltoall, pairwise, "(P-1) a + (P-1)/P N b", one_trip(w.size, n, m))                                                   \
  X(reducescatter, shm, "a' + N (b' + g)", m.local_alpha + n * (m.local_beta + m.gamma))                                   \
  X(reducescatter, pairwise, "(P-1) a + (P-1)/P N (b + g)", one_trip(w.size, n, m) + others(w.size) * n * m.gamma)         \
  X(barrier, shm, "a'", m.local_alpha)                                                                                     \
  X(barrier, dissemination, "ceil(log2 P) a", log2_ceil(w.size) * m.alpha)                                                 \
  X(adasum, halving, "(2 Q + Q (Q+1) / 2) a + (P-1)/P N (2 b + 2 g), Q = log2 P [on one host a' and 2 b' for a and b]",    \
    adasum(w, n, m))

// Table of choices: X(collective, where, values, sizes, maximum ranks, maximum bytes, algorithm). The first row that matches decides. The
// rows of a collective are adjacent. Its last row for each kind of topology (local, nested, flat) matches everything.
//
// With two ranks, recursive doubling and pairwise send equally much, but recursive doubling takes one step instead of two. Without a power
// of two of ranks, Rabenseifner's algorithm sends all data two more times (folding), and pairwise needs a connection to every rank. Adasum
// on one host uses shared memory.
#define HVD_CHOICES(X)                                                                                         \
  X(allreduce,     local,    any,      any,           kAnyRanks, kAnyBytes,                shm)                \
  X(allreduce,     nested,   any,      any,           kAnyRanks, kAnyBytes,                hierarchical)       \
  X(allreduce,     flat,     any,      any,           kAnyRanks, &Tuning::doubling_bytes,  recursive_doubling) \
  X(allreduce,     flat,     any,      any,           2,         &Tuning::pair_bytes,      recursive_doubling) \
  X(allreduce,     flat,     any,      any,           8,         kAnyBytes,                pairwise)           \
  X(allreduce,     flat,     integers, any,           kAnyRanks, kAnyBytes,                ring)               \
  X(allreduce,     flat,     any,      powers_of_two, kAnyRanks, kAnyBytes,                rabenseifner)       \
  X(allreduce,     flat,     any,      any,           64,        kAnyBytes,                pairwise)           \
  X(allreduce,     flat,     any,      any,           kAnyRanks, kAnyBytes,                rabenseifner)       \
  X(broadcast,     local,    any,      any,           kAnyRanks, kAnyBytes,                shm)                \
  X(broadcast,     nested,   any,      any,           kAnyRanks, &Tuning::tree_bytes,      tree)               \
  X(broadcast,     flat,     any,      any,           2,         kAnyBytes,                tree)               \
  X(broadcast,     flat,     any,      any,           kAnyRanks, &Tuning::flat_tree_bytes, tree)               \
  X(broadcast,     links,    any,      any,           kAnyRanks, kAnyBytes,                pipelined)          \
  X(allgather,     local,    any,      any,           kAnyRanks, kAnyBytes,                shm)                \
  X(allgather,     links,    any,      any,           kAnyRanks, kAnyBytes,                ring)               \
  X(alltoall,      local,    any,      any,           kAnyRanks, kAnyBytes,                shm)                \
  X(alltoall,      links,    any,      any,           kAnyRanks, kAnyBytes,                pairwise)           \
  X(reducescatter, local,    any,      any,           kAnyRanks, kAnyBytes,                shm)                \
  X(reducescatter, links,    any,      any,           kAnyRanks, kAnyBytes,                pairwise)           \
  X(barrier,       local,    any,      any,           kAnyRanks, kAnyBytes,                shm)                \
  X(barrier,       links,    any,      any,           kAnyRanks, kAnyBytes,                dissemination)      \
  X(adasum,        anywhere, any,      any,           kAnyRanks, kAnyBytes,                halving)
// clang-format on
