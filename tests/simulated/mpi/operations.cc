// Nonblocking collectives and their completion.
#include <cstring>
#include <numeric>
#include <span>

#include "knobs.h"
#include "process.h"
#include "reduce.h"

using namespace simmpi;

namespace {

struct Mine {
  const char* what;
  const void* data = nullptr;
  size_t bytes = 0;
  int root = -1;
  int64_t value = 0;
  std::vector<size_t> sends;
};

using Take = std::function<void(const Communicator&, Exchange*)>;

int begin(const Process::Call& call, H comm, const Mine& own, Take take, H* request) {
  if (call.fails()) return kError;
  Process& p = Process::get();
  Communicator& c = p.communicator(comm);
  World& world = World::get();
  Pending pending;
  pending.comm = &c;
  pending.never = never_ends(own.what);
  pending.breaks = breaks(own.what);
  pending.exchange = world.join(c.context, ++c.operations);
  Part& part = pending.exchange->parts[c.rank];
  std::strncpy(part.what, own.what, sizeof part.what - 1);
  part.root = own.root;
  part.value = own.value;
  std::copy(own.sends.begin(), own.sends.end(), part.sends);
  if (!pending.never) world.post(pending.exchange, c.rank, own.data, own.bytes);
  pending.take = [&c, exchange = pending.exchange, take = std::move(take)] { take(c, exchange); };
  pending.looks = knob_number("LOOKS", 3);
  *request = p.created(std::move(pending));
  return 0;
}

// Checks that all members have begun the same operation.
void check_alike(const Communicator& c, const Exchange* e) {
  const Part& own = e->parts[c.rank];
  for (size_t i = 0; i < c.members.size(); ++i) {
    const Part& part = e->parts[i];
    if (std::strcmp(part.what, own.what) != 0)
      mistake(std::string("MPI_") + own.what + " meets MPI_" + part.what + " of rank " + std::to_string(c.members[i]));
    if (part.root != own.root || part.value != own.value)
      mistake(std::string("MPI_") + own.what + " with another root, type or operation on rank " + std::to_string(c.members[i]));
  }
}

size_t bytes_of(H type, int count) { return size_of(id_of(type)) * static_cast<size_t>(count); }

void expect(const char* what, size_t bytes, size_t expected) {
  if (bytes != expected)
    mistake(std::string("MPI_") + what + ": " + std::to_string(bytes) + " bytes come where " + std::to_string(expected) + " are expected");
}

// As the standard requires; Open MPI takes equal addresses for MPI_IN_PLACE.
void check_apart(const char* what, const void* in, const void* out) {
  if (in == out) mistake(std::string("MPI_") + what + " sends from the address at which it receives");
}

}  // namespace

SIMMPI_EXPORT int MPI_Test(H* request, int* done, void* status) {
  const Process::Call call("Test");
  if (status != kStatusIgnore) mistake("MPI_Test with a status that is not ignored");
  if (call.fails()) return kError;
  Pending& p = Process::get().pending(*request);
  if (p.done) mistake("MPI_Test of a request that has ended");
  if (p.breaks && p.looks-- <= 0) return kError;
  const int members = static_cast<int>(p.comm->members.size());
  *done = !p.never && !p.breaks && World::complete(p.exchange, members) && p.looks-- <= 0;
  if (!*done) return 0;
  check_alike(*p.comm, p.exchange);
  p.take();
  World::leave(p.exchange, members);
  p.done = true;
  *request = H{};
  return 0;
}

SIMMPI_EXPORT int MPI_Ibarrier(H comm, H* request) {
  const Process::Call call("Ibarrier");
  return begin(call, comm, {.what = "Ibarrier", .sends = {}}, [](const Communicator&, Exchange*) {}, request);
}

SIMMPI_EXPORT int MPI_Ibcast(void* data, int count, H type, int root, H comm, H* request) {
  const Process::Call call("Ibcast");
  const size_t bytes = bytes_of(type, count);
  const bool own = Process::get().communicator(comm).rank == root;
  const Take take = [=](const Communicator&, Exchange* e) {
    expect("Ibcast", e->parts[root].bytes, bytes);
    if (!own && bytes) std::memcpy(data, World::get().area(e, root), bytes);
  };
  return begin(call, comm, {.what = "Ibcast", .data = data, .bytes = own ? bytes : 0, .root = root, .sends = {}}, take, request);
}

SIMMPI_EXPORT int MPI_Iallreduce(const void* in, void* out, int count, H type, H op, H comm, H* request) {
  const Process::Call call("Iallreduce");
  check_apart("Iallreduce", in, out);
  const size_t bytes = bytes_of(type, count);
  const Id t = id_of(type), o = id_of(op);
  const Take take = [=](const Communicator& c, Exchange* e) {
    // The last rank's first: a different order than the engine's, which must not rely on MPI's.
    for (int i = static_cast<int>(c.members.size()) - 1; i >= 0; --i) {
      expect("Iallreduce", e->parts[i].bytes, bytes);
      const std::byte* other = World::get().area(e, i);
      if (i + 1 == static_cast<int>(c.members.size())) {
        std::memcpy(out, other, bytes);
      } else {
        reduce(t, o, out, other, static_cast<size_t>(count));
      }
    }
  };
  return begin(call, comm, {.what = "Iallreduce", .data = in, .bytes = bytes, .value = t * kIds + o, .sends = {}}, take, request);
}

SIMMPI_EXPORT int MPI_Iallgather(const void* in, int count, H type, void* out, int count_of_each, H their_type, H comm, H* request) {
  const Process::Call call("Iallgather");
  check_apart("Iallgather", in, out);
  const size_t bytes = bytes_of(their_type, count_of_each);
  const Take take = [=](const Communicator& c, Exchange* e) {
    for (size_t i = 0; i < c.members.size(); ++i) {
      expect("Iallgather", e->parts[i].bytes, bytes);
      if (bytes) std::memcpy(static_cast<std::byte*>(out) + i * bytes, World::get().area(e, static_cast<int>(i)), bytes);
    }
  };
  return begin(call, comm, {.what = "Iallgather", .data = in, .bytes = bytes_of(type, count), .sends = {}}, take, request);
}

SIMMPI_EXPORT int MPI_Ialltoallv(const void* in, const int* counts, const int* places, H type, void* out, const int* their_counts,
                                 const int* their_places, H their_type, H comm, H* request) {
  const Process::Call call("Ialltoallv");
  check_apart("Ialltoallv", in, out);
  const size_t members = Process::get().communicator(comm).members.size();
  std::vector<std::byte> packed;
  std::vector<size_t> sends;
  for (size_t i = 0; i < members; ++i) {
    const auto* from = static_cast<const std::byte*>(in) + bytes_of(type, places[i]);
    sends.push_back(bytes_of(type, counts[i]));
    packed.insert(packed.end(), from, from + sends.back());
  }
  const Take take = [=](const Communicator& c, Exchange* e) {
    for (size_t i = 0; i < members; ++i) {
      const Part& part = e->parts[i];
      const std::byte* from = World::get().area(e, static_cast<int>(i)) + std::accumulate(part.sends, part.sends + c.rank, size_t{0});
      expect("Ialltoallv", part.sends[c.rank], bytes_of(their_type, their_counts[i]));
      if (their_counts[i]) std::memcpy(static_cast<std::byte*>(out) + bytes_of(their_type, their_places[i]), from, part.sends[c.rank]);
    }
  };
  return begin(call, comm, {.what = "Ialltoallv", .data = packed.data(), .bytes = packed.size(), .sends = sends}, take, request);
}
