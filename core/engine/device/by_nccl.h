// Operations on tensors of GPUs carried out by NCCL, where all ranks of a set can. What NCCL cannot do, or not as our arithmetic has it,
// goes by way of the host (engine/device/staged.h), and so does everything until a set's communicator is there (by_nccl_sets.h).
//
// Used only by whoever drives the engine.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/log.h"
#include "devices/device.h"
#include "engine/device/by_nccl_plan.h"
#include "engine/device/by_nccl_sets.h"
#include "engine/device/launched.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "nccl/decide.h"

namespace hvd {

class ByNccl {
 public:
  ByNccl(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common)
      : kinds_(options.kinds), sets_(options, host, std::move(log), common) {}

  // Does NCCL carry out `response`? All members of the set ask this for the same responses in the same order. `device`: this rank's; null
  // when it has none yet. An error means that the job is over.
  Status asks(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // Is it settled that NCCL carries out nothing for the set? The same on all members.
  bool gives_up(uint32_t set) const { return sets_.gives_up(set); }
  // Launches it, with this rank's operations in the order of response.names; none of them when it has joined.
  Status start(const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);

  // Something is launched, and not done as far as is known: look() at it from time to time, after resting_seconds(). An error is what NCCL
  // has noticed by itself.
  bool in_flight() const { return !launched_.empty(); }
  static double resting_seconds() { return Launched::resting_seconds(); }
  Status look();

  // The set is new, or is no more.
  void forget(uint32_t set) { sets_.forget(set); }
  // The job is over, because of `why`: communicators are destroyed where all is well (Code::shutdown, and `all_take_part` in what is
  // launched here), else aborted, on a thread of their own. What is launched and not done then has failed: its event fires over garbage.
  void end(const Status& why, bool all_take_part);
  // Until they have ended, some seconds at most: the process may be about to end, which it must not while NCCL works.
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

  const std::array<bool, 6> kinds_;  // by Kind: may NCCL carry it out?
  NcclSets sets_;
  std::shared_ptr<Device> device_;
  const NcclSet* set_ = nullptr;  // of the response that was asked about last
  Launched launched_;
};

}  // namespace hvd
