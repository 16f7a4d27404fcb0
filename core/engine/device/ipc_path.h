// IPC path, which executes operations on GPU tensors among ranks of one host that access each other's device memory
// (CUDA IPC). It is used if several ranks share one GPU, which NCCL does not support, or if NCCL is not available.
// Reductions use the engine's own kernels, which add in the same order as the CPU, so results are bitwise identical.
//
// The first operation of a process set decides whether the set uses this path. The ranks exchange their location and
// device, open each other's buffers and read a test pattern from them. If all ranks succeed, the set uses IPC. If any
// rank fails, the set permanently uses host memory.
//
// Tensors are processed in windows (engine/device/splitting.h). Each rank works on its own stream. None of the
// following steps waits for the device:
//   1. Put: a rank packs its tensors into its own buffer and signals `ready`.
//   2. Host barrier: a value must be published before another rank waits for it.
//   3. Work: a rank waits for the others' `ready`, reduces from all buffers into all of them, or copies, and signals
//      `done`.
//   4. Host barrier.
//   5. Take: a rank waits for `done` of the ranks that wrote or read its own buffer, and unpacks the buffer.
//
// A window is a part of the tensors that fits in one slot of a buffer. Windows alternate between two slots. Between two
// barriers, a rank puts window n, works on window n - 1 and takes window n - 2 (steps 1, 3 and 5 above). Every wait is
// for a call made earlier, so waits cannot form a cycle, even across process sets.
//
// Not thread-safe; used only by the thread that runs the engine's progress loop.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/log.h"
#include "engine/connections.h"
#include "engine/device/completion.h"
#include "engine/device/compute.h"
#include "engine/device/ipc_memory.h"
#include "engine/device/splitting.h"
#include "engine/operation.h"
#include "engine/options.h"

namespace hvd {

class IpcPath {
 public:
  IpcPath(const IpcOptions& options, Connections* connections, Backend* host, LogSink log)
      : options_(options), connections_(connections), host_(host), log_(std::move(log)) {}

  // Decide whether `response` uses this path. All ranks of the set must call this for the same responses in the same
  // order. `device` is this rank's device, or null if it has none yet. An error ends the job.
  Status eligible(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // Launch the response with this rank's operations, given in the order of response.names. The list is empty if this
  // rank has called join().
  Status start(const Response& response, Comm& comm, const std::vector<OperationPtr>& operations);

  // True while launched work might be unfinished. The driver must then call look() every resting_seconds() seconds. If
  // look() returns an error, the device has failed and its work will never complete.
  bool in_flight() const { return last_ != nullptr; }
  static double resting_seconds() { return kLook; }
  Status look();

  // Delete the state of a process set that was created or removed.
  void forget(uint32_t set) { sets_.erase(set); }
  // Shut down the path after the job has ended with the error `why`. `well` is true if all ranks have launched the unfinished work, which
  // will then complete. If not, that work fails.
  void end(const Status& why, bool well);
  // Wait up to two seconds until this rank's device is idle and the peers' memory is closed.
  void await_end();

 private:
  static constexpr double kLook = 3e-3;
  enum class State : uint8_t { unasked, ipc, host };
  struct Set {
    State state = State::unasked;
    Sharing sharing = Sharing::by_slices;
    // Size of a window in bytes. Every rank's slots are at least this large.
    size_t window = 0;
    // Number of windows that the process set has processed.
    uint64_t windows = 0;
  };
  struct Hello;
  struct Offer;
  struct Verdict;
  struct Job;

  template <class Record>
  Status share(Comm& comm, const Record& own, std::vector<Record>* all);
  Status ask(Set* set, Comm& comm);
  Status offer(Set* set, Comm& comm);
  Status meet(Comm& comm, const std::vector<Offer>& offers);
  void give_up(Set* set, const std::string& why);
  void warn_of_memory(const Status& status, size_t slot_bytes);

  Status carry_out(const Job& job);
  Status begin(const Job& job);
  Status put(const Job& job, size_t window);
  Status work(const Job& job, size_t window);
  Status reduce(const Job& job, size_t window);
  Status scatter(const Job& job, size_t window);
  Status take(const Job& job, size_t window);

  const IpcOptions options_;
  Connections* const connections_;
  Backend* const host_;
  const LogSink log_;
  std::shared_ptr<Device> device_;
  std::optional<Compute> compute_;
  std::unique_ptr<Exchange> exchange_;
  bool warned_ = false;
  std::map<uint32_t, Set> sets_;
  PendingCompletions pending_;
  // Completion of all work launched so far.
  std::shared_ptr<const Completion> last_;
  Clock::time_point next_look_{};
};

}  // namespace hvd
