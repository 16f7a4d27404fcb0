// Backend that uses a site's MPI, and so any network it supports. Ranks of one host still use shared memory. Control
// messages, Adasum and compressed formats stay on the engine's own links.
#pragma once
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "mpi/session.h"

namespace hvd {

// `host`: executes what does not go through MPI. `world`: rank in MPI_COMM_WORLD of each rank of the job. `reduces`:
// let MPI reduce integers, float32 and float64 in allreduces, in any order. The session lives as long as the process.
std::unique_ptr<Backend> make_mpi_backend(mpi::Session* session, std::vector<int> world, bool reduces, std::unique_ptr<Backend> host);

}  // namespace hvd
