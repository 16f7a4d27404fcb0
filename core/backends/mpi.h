// Backend that uses the site's MPI library, and therefore any network that MPI supports. Ranks on one host still use
// shared memory. Control messages, Adasum and compressed formats use the engine's own connections.
#pragma once
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "mpi/session.h"

namespace hvd {

// Create the backend that uses MPI. `host` is the backend for operations that do not use MPI. `world[r]` is the
// MPI_COMM_WORLD rank of rank r of the job. If `reduces` is true, MPI can reduce integers, float32 and float64 in
// allreduces, in any order. The session must live until the process exits.
std::unique_ptr<Backend> make_mpi_backend(mpi::Session* session, std::vector<int> world, bool reduces, std::unique_ptr<Backend> host);

}  // namespace hvd
