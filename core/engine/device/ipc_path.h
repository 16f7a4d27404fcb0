// IPC path: executes operations on GPU tensors among ranks of one host that access each other's device memory (CUDA
// IPC). It is used if several ranks share one GPU, which NCCL refuses, or if there is no NCCL. Reductions use our own
// kernels, which add in the same order as the CPU and so give the same bits.
//
// Whether a set uses this path is decided at its first operation. The ranks exchange their location and device, open
// the others' buffers and read a pattern in them. If all succeed, the set uses IPC; if one rank cannot, it permanently
// uses the host.
//
// Tensors are processed in windows (engine/device/splitting.h). Each rank works on its own stream, and no step waits
// for the device:
//
//   1. Put: a rank packs its tensors into its own buffer and signals `ready`.
//   2. Host barrier, because a value must be published before another rank waits for it.
//   3. Work: a rank waits for the others' `ready`, reduces from all buffers into all of them, or copies, and signals
//      `done`.
//   4. Host barrier.
//   5. Take: a rank waits for `done` of the ranks that wrote or read its own buffer, and unpacks the buffer.
//
// There are two slots for windows. In each interval between two barriers, a rank puts one window, works on the one
// before, and takes the one before that. Every wait is for a call made earlier, so waits cannot form a cycle, even
// across sets.
//
// This class is used only by the thread that drives the engine.
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

  // Decide whether `response` uses this path. All members of the set call this for the same responses in the same
  // order. `device` is this rank's device, or null if it has none yet. An error means that the job is over.
  Status eligible(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // Launch the response with this rank's operations, in the order of response.names; the list is empty if this rank has
  // joined.
  Status start(const Response& response, Comm& comm, const std::vector<OperationPtr>& operations);

  // True while launched work may be unfinished. The driver then calls look() after resting_seconds(). An error of
  // look() means that the device has failed, and work that others wait for will never complete.
  bool in_flight() const { return last_ != nullptr; }
  static double resting_seconds() { return kLook; }
  Status look();

  // Forget a set that was created or removed.
  void forget(uint32_t set) { sets_.erase(set); }
  // End the path, because the job is over for the reason `why`. If `well`, all ranks have launched the unfinished work,
  // so it will complete; otherwise it has failed.
  void end(const Status& why, bool well);
  // Wait, two seconds at most, until this rank's device has finished and the others' memory is closed.
  void await_end();

 private:
  static constexpr double kLook = 3e-3;
  enum class State : uint8_t { unasked, ipc, host };
  struct Set {
    State state = State::unasked;
    Sharing sharing = Sharing::by_slices;
    size_t window = 0;  // Bytes per window, for which all ranks have room.
    uint64_t windows = 0;  // Number of windows processed so far.
  };
  struct Hello;
  struct Offer;
  struct Verdict;
  struct Job;

  template <class Record>
  Status say(Comm& comm, const Record& mine, std::vector<Record>* all);
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
  std::shared_ptr<const Completion> last_;  // completion of all launched work
  Clock::time_point next_look_{};
};

}  // namespace hvd
