// Pipelined chain: root, root + 1, ... Each rank passes on what has arrived while the rest is still arriving. Every
// connection carries the data once, and for large data the time does not grow with the number of ranks. A segment is
// what a connection delivers at a time (at most its buffer), so there is no segment size to tune.
//
// Cost: (P - 2 + N/S) * (alpha + S * beta), where S is the bytes that a connection holds; about N * beta for large N.
// Source: the pipelined linear broadcast of J. Pjesivac-Grbovic et al., "Performance analysis of MPI collective
// operations", Cluster Computing 10(2), 2007.
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status broadcast_pipelined(Comm& comm, std::byte* data, size_t bytes, int root) {
  if (bytes == 0 || comm.size == 1) return {};
  const int place = (comm.rank - root + comm.size) % comm.size;
  const int from = place == 0 ? -1 : (comm.rank + comm.size - 1) % comm.size;
  const int to = place == comm.size - 1 ? -1 : (comm.rank + 1) % comm.size;
  return relay(comm, from, to, {data, bytes});
}

}  // namespace hvd
