// Runs MPI operations, one at a time. This class polls MPI_Test, because a blocking MPI call cannot be interrupted. MPI
// writes only to memory of this class, never to a tensor: after a rank is lost, an abandoned operation cannot be
// cancelled and might continue to write. Its memory is leaked on purpose, and the session becomes unusable. MPI might
// still read freed tensors, but no rank receives those bytes.
#pragma once
#include <memory>
#include <vector>

#include "collectives/comm.h"
#include "mpi/session.h"

namespace hvd {

class MpiCalls {
 public:
  // `world[r]` is the MPI_COMM_WORLD rank of rank r of the job.
  MpiCalls(mpi::Session* session, std::vector<int> world);
  ~MpiCalls();

  // Return the MPI_COMM_WORLD rank of each rank of the set.
  std::vector<int> members_of(const Comm& comm) const;

  // Get the MPI communicator for the ranks of `comm`. The first call creates it, but gives up with an error if `comm.waiter`
  // reports one or the timeout expires.
  Status enter(const Comm& comm, mpi::Handle* out);
  // Release the communicator that belongs to this process set.
  void forget(const Comm& comm);

  // Call the functions below only within session.use().

  enum Slot { kSend, kReceive, kMine, kResult, kSlots };
  // Return memory for `slot`, aligned to 64 bytes. It stays valid until the next call for the same slot, and its
  // contents are undefined.
  std::byte* memory(Slot slot, size_t bytes);

  // Receive buffers must come from memory(). A send buffer must be different from the receive buffer, because Open MPI
  // treats equal addresses as MPI_IN_PLACE. Bytes and counts must be below 2^31.
  Status barrier(Comm&, mpi::Handle);
  Status broadcast(Comm&, mpi::Handle, std::byte* data, size_t bytes, int root);
  Status allreduce(Comm&, mpi::Handle, const std::byte* in, std::byte* out, size_t count, mpi::Handle type, mpi::Handle op);
  Status allgather(Comm&, mpi::Handle, const std::byte* in, std::byte* out, size_t bytes_of_each);
  // Gather the contributions of all ranks, whose sizes can differ, into `out` in the order of the ranks.
  Status allgather(Comm&, mpi::Handle, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
  // Exchange parts between all ranks. If `without_me` is true, this rank's own part is skipped, so its place in `out` stays undefined.
  Status alltoall(Comm&, mpi::Handle, const std::byte* in, std::span<const size_t> send, std::byte* out, std::span<const size_t> receive,
                  bool without_me = false);

 private:
  struct Memory;
  std::string described(const char* what, const Comm&) const;
  Status finish(Comm&, const char* what, int begun, mpi::Handle request);
  Status give_up(Status why);

  mpi::Session* session_;
  std::vector<int> world_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace hvd
