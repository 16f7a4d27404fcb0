// One operation of MPI's at a time, from its beginning to its end: begun, and then polled, since nothing can interrupt MPI but the end of a
// loop around MPI_Test. Whatever MPI writes is memory of this class and never a tensor: an operation that is left because a rank was lost
// cannot be taken back, and goes on. Its memory is then left to it for ever, and the session is spoilt. Tensors it may read: what it
// sends of one that is no more, nobody receives any more.
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

  // The communicator of the members of `comm`, for the calls below. Making it takes MPI a call that blocks, which is left when the waiter
  // or the comm's timeout says so, as everything else is.
  Status enter(const Comm& comm, mpi::Handle* out);
  // That one is needed no more.
  void forget(const Comm& comm);

  // All that follows within session.use().

  enum Slot { kSend, kReceive, kMine, kResult, kSlots };
  // 64-byte aligned, valid until the next call for this slot; contents undefined.
  std::byte* memory(Slot slot, size_t bytes);

  // What is received lies in memory of the slots, what is sent anywhere else: not at the same address, which Open MPI takes for
  // MPI_IN_PLACE. Bytes and counts: less than 2^31.
  Status barrier(Comm&, mpi::Handle);
  Status broadcast(Comm&, mpi::Handle, std::byte* data, size_t bytes, int root);
  Status allreduce(Comm&, mpi::Handle, const std::byte* in, std::byte* out, size_t count, mpi::Handle type, mpi::Handle op);
  Status allgather(Comm&, mpi::Handle, const std::byte* in, std::byte* out, size_t bytes_of_each);
  // By set rank, consecutive in `out`.
  Status allgather(Comm&, mpi::Handle, const std::byte* in, std::byte* out, std::span<const size_t> bytes);
  // without_me: this rank's own part stays where it is, and its place in `out` undefined.
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
