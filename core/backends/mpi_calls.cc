#include "backends/mpi_calls.h"

#include <cstring>
#include <mutex>
#include <thread>

#include "transport/polled_wait.h"

namespace hvd {
namespace {

// Seconds for which shutdown waits for operations in flight, if the other ranks are alive and MPI is usable.
constexpr double kDrain = 2;

// Counts and displacements of the parts of a message, as the int arrays that MPI expects. The part `left_out` gets count 0.
struct Parts {
  std::vector<int> counts, places;
  void of(std::span<const size_t> bytes, int left_out = -1) {
    counts.clear(), places.clear();
    int place = 0;
    for (const size_t b : bytes) {
      counts.push_back(static_cast<int>(b));
      places.push_back(place);
      place += static_cast<int>(b);
    }
    if (left_out >= 0) counts[static_cast<size_t>(left_out)] = 0;
  }
};

}  // namespace

// Memory that MPI uses until an operation completes: the data and the arrays of counts. It must not be moved or freed earlier.
struct MpiCalls::Memory {
  Scratch scratch;
  Parts out, in;

  // Keep the memory until the process exits. It stays reachable, so that leak checkers do not report it.
  static void leave_behind(std::unique_ptr<Memory> memory) {
    static auto* const mutex = new std::mutex;
    static auto* const all = new std::vector<std::unique_ptr<Memory>>;
    std::lock_guard lock(*mutex);
    all->push_back(std::move(memory));
  }
};

MpiCalls::MpiCalls(mpi::Session* session, std::vector<int> world)
    : session_(session), world_(std::move(world)), memory_(std::make_unique<Memory>()) {}
MpiCalls::~MpiCalls() = default;

std::vector<int> MpiCalls::members_of(const Comm& comm) const {
  std::vector<int> members;
  for (const int rank : comm.global_ranks) members.push_back(world_[static_cast<size_t>(rank)]);
  return members;
}

std::string MpiCalls::described(const char* what, const Comm& c) const {
  std::string text = std::string(what) + " of " + session_->library().version + " with";
  for (int i = 0; i < c.size; ++i) text += (i ? ", " : " ") + c.labels[static_cast<size_t>(i)];
  return text;
}

Status MpiCalls::enter(const Comm& c, mpi::Handle* out) {
  const std::function<std::string()> describe = [&] { return described("MPI_Comm_create_group", c); };
  PolledWait wait(*c.waiter, c.timeout, describe);
  return session_->communicator(members_of(c), [&] { return wait.pause(); }, out);
}

void MpiCalls::forget(const Comm& c) {
  const std::function<std::string()> describe = [&] { return described("MPI_Comm_free", c); };
  PolledWait wait(*c.waiter, c.timeout, describe);
  session_->forget(members_of(c), [&] { return wait.pause(); });
}

std::byte* MpiCalls::memory(Slot slot, size_t bytes) { return memory_->scratch.get(slot, bytes); }

Status MpiCalls::barrier(Comm& c, mpi::Handle comm) {
  mpi::Handle request = 0;
  const int begun = session_->library().ibarrier(comm, &request);
  return finish(c, "MPI_Ibarrier", begun, request);
}

Status MpiCalls::broadcast(Comm& c, mpi::Handle comm, std::byte* data, size_t bytes, int root) {
  mpi::Handle request = 0;
  const int begun = session_->library().ibcast(data, static_cast<int>(bytes), session_->abi().byte, root, comm, &request);
  return finish(c, "MPI_Ibcast", begun, request);
}

Status MpiCalls::allreduce(Comm& c, mpi::Handle comm, const std::byte* in, std::byte* out, size_t count, mpi::Handle type, mpi::Handle op) {
  mpi::Handle request = 0;
  const int begun = session_->library().iallreduce(in, out, static_cast<int>(count), type, op, comm, &request);
  return finish(c, "MPI_Iallreduce", begun, request);
}

Status MpiCalls::allgather(Comm& c, mpi::Handle comm, const std::byte* in, std::byte* out, size_t bytes) {
  mpi::Handle request = 0;
  const int count = static_cast<int>(bytes);
  const mpi::Handle byte = session_->abi().byte;
  const int begun = session_->library().iallgather(in, count, byte, out, count, byte, comm, &request);
  return finish(c, "MPI_Iallgather", begun, request);
}

// Use an alltoall in which every rank sends its part to all ranks. Intel's MPI_Iallgatherv takes seconds if parts are large and unequal.
Status MpiCalls::allgather(Comm& c, mpi::Handle comm, const std::byte* in, std::byte* out, std::span<const size_t> bytes) {
  mpi::Handle request = 0;
  const mpi::Handle byte = session_->abi().byte;
  const auto me = static_cast<size_t>(c.rank);
  Parts &to = memory_->out, &from = memory_->in;
  from.of(bytes, c.rank);
  to.counts.assign(bytes.size(), static_cast<int>(bytes[me]));
  to.counts[me] = 0;
  to.places.assign(bytes.size(), 0);
  if (bytes[me]) std::memcpy(out + from.places[me], in, bytes[me]);
  const int begun = session_->library().ialltoallv(in, to.counts.data(), to.places.data(), byte, out, from.counts.data(),
                                                   from.places.data(), byte, comm, &request);
  return finish(c, "MPI_Ialltoallv", begun, request);
}

Status MpiCalls::alltoall(Comm& c, mpi::Handle comm, const std::byte* in, std::span<const size_t> send, std::byte* out,
                          std::span<const size_t> receive, bool without_me) {
  mpi::Handle request = 0;
  const mpi::Handle byte = session_->abi().byte;
  memory_->out.of(send, without_me ? c.rank : -1);
  memory_->in.of(receive, without_me ? c.rank : -1);
  const int begun = session_->library().ialltoallv(in, memory_->out.counts.data(), memory_->out.places.data(), byte, out,
                                                   memory_->in.counts.data(), memory_->in.places.data(), byte, comm, &request);
  return finish(c, "MPI_Ialltoallv", begun, request);
}

Status MpiCalls::finish(Comm& c, const char* what, int begun, mpi::Handle request) {
  const mpi::Library& library = session_->library();
  // Report a lost peer, because that is the most likely cause of an MPI error. The control plane will report which rank
  // is lost.
  if (begun != 0) return give_up({Code::peer_lost, library.error(begun, what)});
  const std::function<std::string()> describe = [&] { return described(what, c); };
  PolledWait wait(*c.waiter, c.timeout, describe);
  for (;;) {
    int done = 0;
    if (const int result = library.test(&request, &done, session_->abi().status_ignore); result != 0)
      return give_up({Code::peer_lost, library.error(result, what)});
    if (done) return {};
    Status status = session_->usable();
    if (status.ok()) status = wait.pause();
    if (status.ok()) continue;
    const Deadline deadline = Deadline::after(status.code() == Code::shutdown ? kDrain : 0);
    while (!deadline.passed() && library.test(&request, &done, session_->abi().status_ignore) == 0) {
      if (done) return {};
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return give_up(std::move(status));
  }
}

Status MpiCalls::give_up(Status why) {
  Memory::leave_behind(std::move(memory_));
  memory_ = std::make_unique<Memory>();
  session_->spoil("an operation of an earlier job was left before its end (" + why.message() + ")");
  return why;
}

}  // namespace hvd
