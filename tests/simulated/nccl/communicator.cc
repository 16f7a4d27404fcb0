#include "communicator.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "driver.h"
#include "group.h"
#include "knobs.h"
#include "simnccl.h"

std::string ncclComm::name() const { return "rank " + std::to_string(rank) + " of " + std::to_string(size); }

namespace simnccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<ncclComm_t> all;
};
Registry& registry() {
  static Registry* const r = new Registry;
  return *r;
}

constexpr auto kTick = std::chrono::microseconds(200);

// Ranks with different host ids count as on different hosts, as with NCCL_HOSTID.
uint64_t host_of(int rank) {
  std::string text = knob("hostid");
  if (knob_number("hostid_rank", 0) != 0) text = "rank " + std::to_string(rank);
  if (text.empty()) {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    text = name;
  }
  return std::hash<std::string>()(text) | 1;
}

ncclResult_t check_config(const ncclConfig_t* c, bool* blocking) {
  const std::string forced = knob("blocking");
  *blocking = true;
  if (c) {
    constexpr int kUnset = -2147483647 - 1;
    if (c->magic != 0xcafebeef || c->size < 24)
      return failed(ncclInvalidArgument, "ncclConfig_t was not initialised with its size and magic number");
    if (c->blocking != 0 && c->blocking != 1 && c->blocking != kUnset) return failed(ncclInvalidArgument, "blocking has to be 0 or 1");
    *blocking = c->blocking != 0;
  }
  if (!forced.empty()) *blocking = forced != "0";
  return ncclSuccess;
}

// Creates the object without waiting.
ncclResult_t prepare(int size, int rank, const ncclConfig_t* config, ncclComm_t* out) {
  if (!out) return failed(ncclInvalidArgument, "comm is null");
  __atomic_store_n(out, nullptr, __ATOMIC_RELEASE);
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    return failed(ncclInvalidArgument,
                  "rank " + std::to_string(rank) + " of " + std::to_string(size) + " is none (the simulator has 64 at most)");
  }
  bool blocking = true;
  if (const ncclResult_t r = check_config(config, &blocking); r != ncclSuccess) return r;
  random_delay();  // NCCL inspects the system first
  const Driver& d = driver();
  if (!d.found()) return failed(ncclUnhandledCudaError, "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'");
  auto* c = new ncclComm;
  c->rank = rank, c->size = size, c->blocking = blocking;
  c->host = host_of(rank);
  c->device = d.current_device();
  if (c->device < 0) {
    mistake(c->name() + ": a communicator is made on a thread without a current context; NCCL would take device 0");
    return failed(ncclUnhandledCudaError, "no current context");
  }
  d.get_context(&c->context);
  const auto n = static_cast<size_t>(size);
  c->sent.resize(n), c->received.resize(n), c->connected_to.resize(n), c->connected_from.resize(n);
  c->creating = true;
  {
    std::lock_guard lock(registry().mutex);
    registry().all.push_back(c);
  }
  __atomic_store_n(out, c, __ATOMIC_RELEASE);  // before the work starts
  return ncclSuccess;
}

ncclResult_t start_creation(const Creation& creation) {
  if (creation.comm->blocking) return create(creation);
  creation.comm->state = ncclInProgress;
  on_helper(creation.comm, [creation] { creation.comm->state = create(creation); });
  return ncclInProgress;
}

}  // namespace

std::vector<ncclComm_t> all_communicators() {
  std::lock_guard lock(registry().mutex);
  return registry().all;
}

ncclResult_t usable(ncclComm_t comm, const char* by) {
  if (!comm) return failed(ncclInvalidArgument, std::string(by) + " : comm argument is NULL");
  if (const char* ended = comm->ended.load()) {
    mistake(comm->name() + ": " + by + " on a communicator after " + ended);
    return failed(ncclInvalidArgument, "comm has ended");
  }
  if (comm->state.load() == ncclInProgress) {
    return failed(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  return ncclSuccess;
}

void on_helper(ncclComm_t comm, std::function<void()> work) {
  std::thread([comm, work = std::move(work)] {
    driver().push_context(comm->context);
    random_delay();
    work();
  }).detach();
}

bool wait_for(ncclComm_t comm, const std::function<bool()>& done) {
  while (!done()) {
    if (comm->abort.load()) return false;
    std::this_thread::sleep_for(kTick);
  }
  return true;
}

ncclResult_t create(const Creation& creation) {
  ncclComm_t c = creation.comm;
  random_delay();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(knob_number("creation_ms", 0));
  wait_for(c, [&] { return std::chrono::steady_clock::now() >= end; });
  Joining joining{};
  joining.size = c->size, joining.rank = c->rank, joining.version = version(), joining.host = c->host;
  const char* uuid = driver().uuid(c->device);
  std::snprintf(joining.uuid, sizeof joining.uuid, "%s", uuid ? uuid : "");
  std::snprintf(joining.bus, sizeof joining.bus, "%d000", c->device + 1);
  const ncclResult_t r = join(creation.id, joining, [c] { return c->abort.load(); }, &c->shared);
  if (r == ncclSuccess) {
    RankState& entry = c->shared->rank(c->rank);
    entry.host = c->host;
    entry.connected.fetch_or(1u << 31, std::memory_order_release);
    // All ranks have arrived, and all their records are written.
    wait_for(c, [c] {
      for (int i = 0; i < c->size; ++i) {
        if (!(c->shared->rank(i).connected.load(std::memory_order_acquire) & 1u << 31)) return false;
      }
      return true;
    });
  }
  c->creating = false;
  return r != ncclSuccess ? r : c->abort.load() ? failed(ncclInternalError, "the creation of the communicator was aborted") : ncclSuccess;
}

void abort_together(std::span<const ncclComm_t> comms) {
  for (ncclComm_t c : comms) c->abort = true;
  for (ncclComm_t c : comms) {
    const auto sleep_until = [](const auto& done) {
      while (!done()) std::this_thread::sleep_for(kTick);
    };
    sleep_until([&] { return !c->creating.load(); });
    // Freeing its memory waits for the device, and so also for kernels of other communicators.
    for (ncclComm_t other : all_communicators()) {
      if (other->device != c->device) continue;
      const uint64_t until = other->launched.load();
      sleep_until([&] { return other->finished.load() >= until; });
    }
    if (c->shared) {
      c->shared->rank(c->rank).phase = static_cast<int>(Phase::aborted);
      if (knob_number("abort_waits", 0) != 0) {
        sleep_until([&] {
          for (int r = 0; r < c->size; ++r) {
            RankState& other = c->shared->rank(r);
            if (other.host == c->host && other.phase.load() == static_cast<int>(Phase::living)) return false;
          }
          return true;
        });
      }
    }
    c->ended = "ncclCommAbort";
  }
}

}  // namespace simnccl

using namespace simnccl;

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t r = count_call("GetUniqueId", -1); r != ncclSuccess) return r;
  return id ? serve(id) : failed(ncclInvalidArgument, "id is null");
}

namespace {

ncclResult_t init_rank(ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  if (const ncclResult_t r = count_call("CommInitRankConfig", rank); r != ncclSuccess) return r;
  if (const ncclResult_t r = prepare(nranks, rank, config, comm); r != ncclSuccess) return r;
  const Creation creation{*comm, id};
  return in_group() ? add_to_group(creation) : start_creation(creation);
}

}  // namespace

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return init_rank(comm, nranks, id, rank, nullptr);
}

#if SIMNCCL_BUILT_AS >= 21400
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init_rank(comm, nranks, id, rank, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t r = usable(comm, "ncclCommFinalize"); r != ncclSuccess) return r;
  if (const ncclResult_t r = count_call("CommFinalize", comm->rank); r != ncclSuccess) return r;
  const auto flush = [comm] {
    return wait_for(comm, [comm] { return comm->finished.load() >= comm->launched.load(); }) ? ncclSuccess : ncclInternalError;
  };
  if (comm->blocking) return flush();
  comm->state = ncclInProgress;
  on_helper(comm, [comm, flush] { comm->state = flush(); });
  return ncclInProgress;
}

#endif

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (const ncclResult_t r = usable(comm, "ncclCommDestroy"); r != ncclSuccess) return r;
  if (const ncclResult_t r = count_call("CommDestroy", comm->rank); r != ncclSuccess) return r;
  wait_for(comm, [comm] { return comm->finished.load() >= comm->launched.load(); });
  if (comm->shared) {
    comm->shared->rank(comm->rank).phase = static_cast<int>(Phase::destroyed);
    wait_for(comm, [comm] {
      for (int r = 0; r < comm->size; ++r) {
        RankState& other = comm->shared->rank(r);
        if (other.host == comm->host && other.phase.load() == static_cast<int>(Phase::living)) return false;
      }
      return true;
    });
  }
  {
    std::lock_guard lock(comm->mutex);
    for (const ncclComm::Own& own : comm->own) {
      if (own.living) mistake(comm->name() + ": destroyed with a premultiplied operation that was not released");
    }
  }
  comm->ended = "ncclCommDestroy";
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (const char* ended = comm->ended.load()) {
    mistake(comm->name() + ": ncclCommAbort on a communicator after " + ended);
    return ncclInvalidArgument;
  }
  if (const ncclResult_t r = count_call("CommAbort", comm->rank); r != ncclSuccess) return r;
  if (in_group()) return add_abort_to_group(comm);
  abort_together(std::span(&comm, 1));
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (!comm || !error) return failed(ncclInvalidArgument, "ncclCommGetAsyncError : an argument is NULL");
  if (const char* ended = comm->ended.load()) {
    mistake(comm->name() + ": ncclCommGetAsyncError on a communicator after " + ended);
    return ncclInvalidArgument;
  }
  if (const ncclResult_t r = count_call("CommGetAsyncError", comm->rank); r != ncclSuccess) return r;
  *error = comm->state.load();
  return ncclSuccess;
}

SIMNCCL_API int simnccl_living() {
  int n = 0;
  for (const ncclComm_t c : all_communicators()) n += c->ended.load() == nullptr;
  return n;
}
