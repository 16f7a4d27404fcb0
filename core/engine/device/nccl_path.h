// NCCL path: operations on GPU tensors, if all ranks of a set have NCCL. Operations that NCCL cannot do, or not with
// our arithmetic, go through host memory (engine/device/host_staged_path.h); so does everything until a set's communicator is
// ready (nccl_sets.h).
//
// Used only by the thread that drives the engine.
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

  // Decide whether NCCL executes `response`. All members of the set ask this for the same responses in the same order.
  // `device`: this rank's; null if it has none yet. An error means that the job is over.
  Status eligible(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // True if NCCL will never execute anything for the set. Equal on all members.
  bool gives_up(uint32_t set) const { return sets_.gives_up(set); }
  // Launch the response with this rank's operations, in the order of response.names; empty if it has joined.
  Status start(const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);

  // True while launched work may be unfinished; then call look() after resting_seconds(). An error is an asynchronous
  // NCCL error.
  bool in_flight() const { return !launched_.empty(); }
  static double resting_seconds() { return LaunchedOperations::resting_seconds(); }
  Status look();

  // The set was created or removed.
  void forget(uint32_t set) { sets_.forget(set); }
  // The job is over because of `why`. Destroy communicators if all is well (Code::shutdown, and `all_take_part` in the
  // launched work), otherwise abort them, on a separate thread. Unfinished work has then failed: its events fire, but
  // the data are invalid.
  void end(const Status& why, bool all_take_part);
  // Wait until they have ended, some seconds at most, because the process must not exit while NCCL works.
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

  const std::array<bool, 6> kinds_;  // whether NCCL may execute each Kind
  NcclSets sets_;
  std::shared_ptr<Device> device_;
  const NcclSet* set_ = nullptr;  // set of the last response asked about
  LaunchedOperations launched_;
};

}  // namespace hvd
