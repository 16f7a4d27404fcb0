// Communicators and groups.
#include <algorithm>
#include <map>

#include "knobs.h"
#include "process.h"

using namespace simmpi;

SIMMPI_EXPORT int MPI_Comm_rank(H comm, int* rank) {
  const Process::Call call("Comm_rank");
  *rank = Process::get().communicator(comm).rank;
  return call.fails() ? kError : 0;
}

SIMMPI_EXPORT int MPI_Comm_size(H comm, int* size) {
  const Process::Call call("Comm_size");
  *size = static_cast<int>(Process::get().communicator(comm).members.size());
  return call.fails() ? kError : 0;
}

SIMMPI_EXPORT int MPI_Comm_set_errhandler(H comm, H handler) {
  const Process::Call call("Comm_set_errhandler");
  if (id_of(handler) != kErrorsReturn) mistake("MPI_ERRORS_RETURN was thought of");
  (void)Process::get().communicator(comm);
  return call.fails() ? kError : 0;
}

SIMMPI_EXPORT int MPI_Comm_group(H comm, H* group) {
  const Process::Call call("Comm_group");
  Process& p = Process::get();
  *group = p.created(p.communicator(comm).members);
  return call.fails() ? kError : 0;
}

SIMMPI_EXPORT int MPI_Group_incl(H group, int count, const int* ranks, H* created) {
  const Process::Call call("Group_incl");
  Process& p = Process::get();
  const std::vector<int>& all = p.group(group);
  std::vector<int> some;
  for (int i = 0; i < count; ++i) {
    if (ranks[i] < 0 || static_cast<size_t>(ranks[i]) >= all.size()) mistake("a rank that the group has not");
    some.push_back(all[static_cast<size_t>(ranks[i])]);
  }
  *created = p.created(some);
  return call.fails() ? kError : 0;
}

SIMMPI_EXPORT int MPI_Group_free(H* group) {
  const Process::Call call("Group_free");
  (void)Process::get().group(*group);
  *group = H{};
  return call.fails() ? kError : 0;
}

// Blocks until all members of the group have arrived, as real libraries do.
SIMMPI_EXPORT int MPI_Comm_create_group(H comm, H group, int tag, H* created) {
  const Process::Call call("Comm_create_group");
  if (call.fails()) return kError;
  Process& p = Process::get();
  World& world = World::get();
  Communicator& from = p.communicator(comm);
  Communicator next;
  next.members = p.group(group);
  const auto me = std::find(next.members.begin(), next.members.end(), world.rank());
  if (me == next.members.end()) mistake("MPI_Comm_create_group by who is no member");
  next.rank = static_cast<int>(me - next.members.begin());
  // Concurrent creations are distinguished by their members.
  uint64_t named = static_cast<uint64_t>(tag) << 16 | from.context;
  for (const int member : next.members) named = named << 3 | static_cast<uint64_t>(member + 1);
  static auto* const before = new std::map<uint64_t, uint64_t>;  // one creation at a time
  Exchange* exchange = world.join(named, ++(*before)[named]);
  exchange->parts[next.rank].value = next.rank == 0 ? static_cast<int64_t>(world.control().contexts.fetch_add(1) + 16) : 0;
  world.post(exchange, next.rank, nullptr, 0);
  const int members = static_cast<int>(next.members.size());
  while (!World::complete(exchange, members)) ::usleep(200);
  next.context = static_cast<uint64_t>(exchange->parts[0].value);
  World::leave(exchange, members);
  *created = p.created(next);
  return 0;
}

SIMMPI_EXPORT int MPI_Comm_free(H* comm) {
  const Process::Call call("Comm_free");
  Process::get().communicator(*comm).freed = true;
  *comm = handle_of(kCommNull);
  return call.fails() ? kError : 0;
}
