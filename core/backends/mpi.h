// Backend that uses the site's MPI library, and so any network that MPI supports. Ranks on one host still use shared
// memory. Control messages, Adasum and compressed formats use the engine's own links.
#pragma once
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "mpi/session.h"

namespace hvd {

// `host` executes the operations that do not use MPI. `world` holds the rank in MPI_COMM_WORLD of each rank of the job.
// If `reduces` is true, MPI may reduce integers, float32 and float64 in allreduces, in any order. The session must live
// as long as the process.
std::unique_ptr<Backend> make_mpi_backend(mpi::Session* session, std::vector<int> world, bool reduces, std::unique_ptr<Backend> host);

}  // namespace hvd
