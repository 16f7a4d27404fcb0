// One operation of MPI's at a time, from its beginning to its end: begun, and then polled, since nothing can interrupt MPI but the end of a
// loop around MPI_Test. Whatever MPI reads and writes is memory of this class and never a tensor: an operation that is left because a rank
// was lost cannot be taken back, and goes on reading and writing. Its memory is then left to it for ever, and the session is spoilt.
#pragma once
#include <memory>
#include <vector>

#include "collectives/comm.h"
#include "mpi/session.h"

namespace hvd {

class MpiCalls {
 public:
  // world: rank in MPI_COMM_WORLD, by rank of the job.
  MpiCalls(mpi::Session* session, std::vector<int> world);
  ~MpiCalls();

  // Ranks in MPI_COMM_WORLD, by set rank.
  std::vector<int> members_of(const Comm& comm) const;

  // All that follows within session.use(). The communicator of the members of `comm`, for the calls below.
  Status enter(const Comm& comm, mpi::Handle* out);

  enum Slot { kSend, kReceive, kMine, kResult, kSlots };
  // 64-byte aligned, valid until the next call for this slot; contents undefined.
  std::byte* memory(Slot slot, size_t bytes);

  // On memory of the slots. Bytes and counts: less than 2^31.
  Status barrier(Comm&, mpi::Handle);
  Status broadcast(Comm&, mpi::Handle, std::byte* data, size_t bytes, int root);
  Status allreduce(Comm&, mpi::Handle, const std::byte* in, std::byte* out, size_t count, mpi::Handle type, mpi::Handle op);
  Status allgather(Comm&, mpi::Handle, const std::byte* in, std::byte* out, size_t bytes_of_each);
  // By set rank, consecutive in `out`.
  Status allgather(Comm&, mpi::Handle, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
  Status alltoall(Comm&, mpi::Handle, const std::byte* in, std::span<const size_t> send, std::byte* out, std::span<const size_t> receive);

 private:
  struct Memory;
  Status finish(Comm&, const char* what, int begun, mpi::Handle request);
  Status give_up(Status why);

  mpi::Session* session_;
  std::vector<int> world_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace hvd
