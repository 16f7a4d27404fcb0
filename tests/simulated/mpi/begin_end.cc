// Initialization and finalization of MPI, and queries of a process about itself.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "knobs.h"
#include "process.h"

using namespace simmpi;

namespace {

int text_out(const std::string& text, char* out, int* length) {
  std::memcpy(out, text.c_str(), text.size() + 1);
  *length = static_cast<int>(text.size());
  return 0;
}

// Waits until all processes have arrived.
void meet(std::atomic<uint32_t>& counter) {
  ++counter;
  while (counter.load() < static_cast<uint32_t>(World::get().size())) ::usleep(200);
}

}  // namespace

SIMMPI_EXPORT int MPI_Initialized(int* flag) { return *flag = Process::get().started, 0; }
SIMMPI_EXPORT int MPI_Finalized(int* flag) { return *flag = Process::get().ended, 0; }

SIMMPI_EXPORT int MPI_Init_thread(int*, char***, int required, int* provided) {
  Process& p = Process::get();
  if (p.started) mistake("MPI_Init_thread a second time");
  if (enter("Init_thread")) return kError;
  meet(World::get().control().started);
  int level = 3;
  while (level > 0 && kLevels[level] > required) --level;
  p.level = std::min(level, static_cast<int>(knob_number("LEVEL", 3)));
  p.first = ::syscall(SYS_gettid);
  *provided = kLevels[p.level];
  p.started = true;
  return 0;
}

SIMMPI_EXPORT int MPI_Query_thread(int* provided) { return *provided = kLevels[Process::get().level], 0; }

SIMMPI_EXPORT int MPI_Finalize() {
  Process& p = Process::get();
  {
    const Process::Call call("Finalize");
    if (call.fails()) return kError;
    for (const auto& [function, rest] : p.attributes) (void)function(handle_of(kSelfComm), 1, rest.first, rest.second);
    meet(World::get().control().ended);
  }
  p.ended = true;
  return 0;
}

SIMMPI_EXPORT int MPI_Get_library_version(char* text, int* length) {
  const std::string known[] = {"Open MPI v5.0.11, package: simulated", "MPICH Version:      5.0.2\nMPICH ABI:  18",
                               "MPICH Version:      5.0.2"};
  const std::string version = knob("VERSION");
  return text_out(version.empty() ? known[SIMMPI_FAMILY - 1] : version, text, length);
}

SIMMPI_EXPORT int MPI_Error_string(int code, char* text, int* length) {
  return text_out(code == kError ? "simulated failure" : "no such error", text, length);
}

SIMMPI_EXPORT int MPI_Comm_get_parent(H* parent) {
  const Process::Call call("Comm_get_parent");
  *parent = handle_of(knob("SPAWNED") == "1" ? kWorldComm : kCommNull);
  return call.fails() ? kError : 0;
}

using CopyAttribute = int(H, int, void*, void*, void*, int*);
using DeleteAttribute = int(H, int, void*, void*);

namespace {
DeleteAttribute* at_end = nullptr;
void* extra_at_end = nullptr;
}  // namespace

SIMMPI_EXPORT int MPI_Comm_create_keyval(CopyAttribute*, DeleteAttribute* function, int* key, void* extra) {
  const Process::Call call("Comm_create_keyval");
  at_end = function;
  extra_at_end = extra;
  *key = 1;
  return call.fails() ? kError : 0;
}

SIMMPI_EXPORT int MPI_Comm_set_attr(H comm, int key, void* value) {
  const Process::Call call("Comm_set_attr");
  if (id_of(comm) != kSelfComm || key != 1 || !at_end) mistake("only one attribute, of MPI_COMM_SELF, was thought of");
  Process::get().attributes.emplace_back(at_end, std::pair(value, extra_at_end));
  return call.fails() ? kError : 0;
}
