// NCCL path, which executes operations on GPU tensors if all ranks of a process set have NCCL. Operations go through
// host memory (engine/device/host_staged_path.h) if NCCL cannot execute them, if NCCL would compute different bits, or
// while the set's communicator is not ready (nccl_sets.h).
//
// Not thread-safe; used only by the thread that runs the engine's progress loop.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/log.h"
#include "devices/device.h"
#include "engine/device/nccl_sets.h"
#include "engine/device/splitting.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "nccl/decide.h"

namespace hvd {

class NcclPath {
 public:
  NcclPath(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common)
      : kinds_(options.kinds), sets_(options, host, std::move(log), common) {}

  // Decide whether NCCL executes `response`. All ranks of the set must call this for the same responses in the same
  // order. `device` is this rank's device, or null if it has none yet. An error ends the job.
  Status eligible(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // True if NCCL will never execute operations of the set. All ranks of the set return the same answer.
  bool gives_up(uint32_t set) const { return sets_.gives_up(set); }
  // Launch the response with this rank's operations, given in the order of response.names. The list is empty if this
  // rank has called join().
  Status start(const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);

  // True while launched work might be unfinished. The driver must then call look() every resting_seconds() seconds. An
  // error from look() is an asynchronous NCCL error.
  bool in_flight() const { return !launched_.empty(); }
  static double resting_seconds() { return LaunchedOperations::resting_seconds(); }
  Status look();

  // Delete the state of a process set that was created or removed.
  void forget(uint32_t set) { sets_.forget(set); }
  // Shut down the path after the job has ended with the error `why`. If `why` is Code::shutdown and all ranks take part in the launched
  // work (`all_take_part`), communicators are destroyed. If not, they are aborted on a separate thread, and unfinished work fails: its
  // events fire, but its data are invalid.
  void end(const Status& why, bool all_take_part);
  // Wait a few seconds for the communicators to shut down, because the process must not exit while NCCL is running.
  void await_end() { sets_.await_end(); }

 private:
  nccl::Reduction reduction(const NcclSet& set, const Response& response, const Comm& comm) const;
  Status launch(const NcclSet& set, const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);
  Status make_output(size_t bytes, Operation* op);
  Status remember(std::string what, const std::vector<OperationPtr>& operations);
  Device::Stream stream() const { return sets_.stream(); }
  using Operations = std::vector<OperationPtr>;
  Status allreduce(const NcclSet& set, const Response& response, const Comm& comm, const Operations& operations);
  Status allreduce_zeros(const NcclSet& set, const nccl::Reduction& how, std::span<const size_t> counts, size_t element,
                         const Packing& packing);
  Status allgather(const NcclSet& set, const Response& response, const Comm& comm, const Operations& operations);
  Status reducescatter(const NcclSet& set, const Response& response, const Comm& comm, const Operations& operations);
  Status broadcast(const NcclSet& set, const Response& response, const Comm& comm, const Operation& op);
  Status alltoall(const NcclSet& set, const Response& response, const Comm& comm, Operation& op);

  // True for each Kind that NCCL can execute.
  const std::array<bool, 6> kinds_;
  NcclSets sets_;
  std::shared_ptr<Device> device_;
  // Process set of the last response that was passed to eligible().
  const NcclSet* set_ = nullptr;
  LaunchedOperations launched_;
};

}  // namespace hvd
