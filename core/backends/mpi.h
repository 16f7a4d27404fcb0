// The backend that goes through a site's MPI, and so reaches whatever network that knows. Inside a host ranks keep their shared memory.
// Control messages, Adasum and compressed formats stay on our own links.
#pragma once
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "mpi/session.h"

namespace hvd {

// `host`: carries out what does not go through MPI. `world`: rank in MPI_COMM_WORLD, by rank of the job. `reduces`: MPI reduces integers,
// float32 and float64 in allreduces, in whatever order it likes. The session lives as long as the process.
std::unique_ptr<Backend> make_mpi_backend(mpi::Session* session, std::vector<int> world, bool reduces, std::unique_ptr<Backend> host);

}  // namespace hvd
