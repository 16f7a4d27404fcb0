// A simulated MPI: the functions that the engine uses, in processes that communicate through shared memory, with checks of
// callers and requested faults. Built three times, as Open MPI's libmpi.so.40, MPICH's libmpi.so.12 and the standard ABI's libmpi_abi.so.1.
//
// It can show: consistent order of calls, permitted threads, matching counts, and handling of operations that fail, never end
// or block. It cannot show: speed, and agreement with real libraries.
//
// Variables, looked at in every call:
//   SIMMPI_WORLD      descriptor of a memfd that the processes have inherited (new_world()); without: a world of one process
//   SIMMPI_RANK, SIMMPI_SIZE
//   SIMMPI_LEVEL      the thread level that is granted at most: 0 (single) to 3 (multiple, the default)
//   SIMMPI_FAIL       NAME:K[@RANK]: the K-th call of MPI_NAME, from 1, fails with kError
//   SIMMPI_BLOCK      NAME[@RANK]: MPI_NAME does not return
//   SIMMPI_NEVER      NAME[@RANK]: what MPI_NAME begins does not end
//   SIMMPI_BREAK      NAME[@RANK]: what MPI_NAME begins fails when it is looked at
//   SIMMPI_LOOKS      how often MPI_Test says no before an operation that could end does (3)
//   SIMMPI_SPAWNED    1: as if MPI_Comm_spawn had started the process
//   SIMMPI_VERSION    what MPI_Get_library_version says
//
// A caller's error is reported on stderr, and the process aborts.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace simmpi {

constexpr int kError = 15;
constexpr int kMostRanks = 4, kExchanges = 16;
constexpr size_t kAreaBytes = 16u << 20;  // most bytes that one rank sends in one operation
constexpr size_t kControlBytes = 1u << 20;
// pages take memory only once written
constexpr size_t kWorldBytes = kControlBytes + kAreaBytes * kMostRanks * kExchanges;

// For SIMMPI_WORLD; children inherit it.
inline int new_world() {
  const int fd = ::memfd_create("simmpi", 0);
  return fd >= 0 && ::ftruncate(fd, static_cast<off_t>(kWorldBytes)) == 0 ? fd : -1;
}

}  // namespace simmpi
