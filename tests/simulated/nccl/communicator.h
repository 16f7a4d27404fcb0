// One rank's communicator of the simulated NCCL. Never freed, so that a use after its end is detected.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "arithmetic.h"
#include "nccl_abi.h"
#include "shared.h"

struct ncclComm {
  int rank = 0, size = 1, device = -1;
  bool blocking = true;
  uint64_t host = 0;
  void* context = nullptr;  // of the device, for helper threads
  std::shared_ptr<simnccl::Shared> shared;

  std::atomic<bool> creating{false}, abort{false};
  std::atomic<const char*> ended{nullptr};  // by which function
  std::atomic<int> state{ncclSuccess};  // result of ncclCommGetAsyncError
  std::atomic<bool> launching{false};
  std::atomic<uint64_t> launched{0}, finished{0};  // kernels

  // Used by the launching thread only.
  uint64_t collectives = 0;  // kernels with collectives, which are numbered
  size_t area_bytes = 0;  // bytes that the last one stored in this rank's area
  std::vector<uint64_t> sent, received;  // messages, by peer
  uint32_t connected = 0;                // kinds of collectives
  std::vector<bool> connected_to, connected_from;

  std::mutex mutex;
  struct Own {
    simnccl::Reduce how;
    bool living = true;
  };
  std::vector<Own> own;  // operations created here, from ncclNumOps on; with the lock

  std::string name() const;  // "rank 1 of 4"
};

namespace simnccl {

// Returns success if the communicator may be used; otherwise sets the last error.
ncclResult_t usable(ncclComm_t comm, const char* by);

// All communicators of the process, including ended ones.
std::vector<ncclComm_t> all_communicators();

// Runs `work` on a thread with the communicator's context.
void on_helper(ncclComm_t comm, std::function<void()> work);

// Sleeps until `done`; false if the communicator is aborted.
bool wait_for(ncclComm_t comm, const std::function<bool()>& done);

// Stops everything on them, then waits for work that must end: kernels, including those of other
// communicators on the device.
void abort_together(std::span<const ncclComm_t> comms);

// A communicator being created: NCCL's arguments are checked, without waiting for other ranks.
struct Creation {
  ncclComm_t comm;
  ncclUniqueId id;
};
ncclResult_t create(const Creation& creation);  // waits for the other ranks

}  // namespace simnccl
