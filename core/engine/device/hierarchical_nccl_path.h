// Hierarchical NCCL path for allreduces of GPU tensors. First, NCCL reduces within each host, which gives each rank a
// part of its host's result. Then the ranks that hold the same part on different hosts reduce it over the engine's own
// links (Request::across_hosts). Finally, NCCL gathers the result within each host. Each rank moves only its own part
// through host memory. The path is used for process sets that NCCL cannot connect as a whole, and where
// HOROVOD_HIERARCHICAL_ALLREDUCE requests it.
//
// An operation goes through these steps:
//   1. start() packs the tensors and launches NCCL's reduction within the host. advance() copies the parts to pinned
//      memory without waiting.
//   2. When the copy of a part has arrived, advance() submits the operation "NAME/hosts" on host memory. It is
//      negotiated and executed like any other operation.
//   3. When "NAME/hosts" is complete, the part is copied back and NCCL gathers it, in the same order on all ranks. The
//      tensors are then unpacked. The program's operation counts as done once all this is launched.
//
// Not thread-safe; used only by the thread that runs the engine's progress loop.
#pragma once
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "devices/pinned.h"
#include "engine/device/completion.h"
#include "engine/device/host_staged_path.h"
#include "engine/device/nccl_sets.h"
#include "engine/device/splitting.h"
#include "engine/observers.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "engine/submissions.h"
#include "nccl/decide.h"

namespace hvd {

class HierarchicalNcclPath {
 public:
  // `staged_memory` limits the bytes of pinned memory in use at a time. Only a part that is staged alone may exceed it. The limit shrinks
  // if less memory is available. The caller, not this class, checks `options.by_hosts`.
  HierarchicalNcclPath(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common, size_t staged_memory,
                       Submissions* submissions, const Observers* observers)
      : wanted_(options.kinds[static_cast<size_t>(Kind::allreduce)]), host_(host), log_(log), sets_(options, host, std::move(log), common),
        staged_memory_(staged_memory), submissions_(submissions), observers_(observers) {}
  ~HierarchicalNcclPath() { take_all(); }

  // True if the response permits this path; it does not, for example, after a rank has called join(). eligible() decides whether the
  // process set and the devices permit it.
  bool fits(const Response& response, const Comm& comm) const;
  // Decide whether a response for which fits() is true uses this path. All ranks of the set must call this for the same responses in the
  // same order. An error ends the job.
  Status eligible(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // True if the process set can never use this path. All ranks of the set return the same answer.
  bool gives_up(uint32_t set) const {
    const auto it = settled_.find(set);
    return it != settled_.end() && it->second.eligibility == Eligibility::no;
  }
  // Start executing the response with this rank's operations, given in the order of response.names. An error ends the
  // job.
  Status start(const Response& response, const Comm& comm, std::vector<OperationPtr> operations);

  // Advance the operations in flight. Return true if any operation made progress. An error in `status` ends the job.
  bool advance(std::vector<HostStagedPath::Done>* done, Status* status);
  bool idle() const { return flights_.empty(); }
  // Return the maximum number of seconds to sleep before advance() must be called again.
  double resting_seconds() const { return resting_seconds_after(flights_.front().begun); }

  // True while launched work might be unfinished, even if no operation is in flight any more.
  bool in_flight() const { return !launched_.empty(); }
  Status look() { return launched_.empty() ? Status() : launched_.look(sets_).with(device_->description()); }

  void forget(uint32_t set);
  // Remove and return all operations that are still in flight when the job ends. Their memory is kept while the device
  // uses it.
  std::vector<OperationPtr> take_all();
  // Shut down the communicators: destroy them if `why` is ok, or abort them if it is an error.
  void end(const Status& why);
  void await_end() { sets_.await_end(); }

 private:
  enum class Eligibility : uint8_t { unsettled, yes, no };
  // State of a process set, equal on all of its ranks.
  struct Set {
    Eligibility eligibility = Eligibility::unsettled;
    // NCCL version and compute capability, each the minimum over all ranks.
    int version = 0, capability = 0;
  };
  struct Word;
  struct Flight;
  struct Part {
    HierarchicalNcclPath* self = nullptr;
    Flight* flight = nullptr;
    PartPlan plan;
    // Completion of NCCL's reduction within the host. Null once the copy of the part to host memory is queued.
    std::shared_ptr<const Completion> reduced;
    std::shared_ptr<PinnedPool::Block> pinned;
    OperationPtr host;
    // Event after the copy to host memory. Null once the device has reached it.
    Device::Event copied = nullptr;
  };
  struct Flight {
    std::vector<OperationPtr> operations;
    // Description of the operation for error messages.
    std::string what;
    // NCCL communicator of the set's ranks on this host.
    std::shared_ptr<nccl::Communicator> communicator;
    // Request that reduces a part across hosts, the same for all parts except for the shape.
    Request between;
    // Name of the host operation for the first part. The names of the other parts are derived from it.
    std::string name;
    int members = 1, me = 0;
    std::shared_ptr<GpuMemory::Block> buffer;
    std::vector<Part> parts;
    uint64_t carrier = 0;
    // Numbers of parts: copied to host memory (brought), submitted for the reduction across hosts (submitted), and not yet gathered within
    // the host (open).
    size_t brought = 0, submitted = 0, open = 0;
    Status status;
    Clock::time_point begun = Clock::now();
  };

  Status open();
  nccl::Reduction reduction(const Set& set, const Response& response, const Comm& comm) const;
  Status begin(const Response& response, const Comm& comm, Flight* flight);
  Status pack(const Flight& flight, size_t bytes);
  Status bring(Flight& flight, Part* part);
  struct Look;
  Status look(Flight& flight, Look* how);
  static void arrived(Operation& op, void* context);
  Status collect(Part& part);
  Status finish(Flight& flight);
  std::byte* part_of(const Flight& flight, const PartPlan& plan) const;

  const bool wanted_;
  Backend* const host_;
  const LogSink log_;
  // NCCL communicators of the process sets, each of which connects the set's ranks on this host.
  NcclSets sets_;
  size_t staged_memory_;
  Submissions* const submissions_;
  const Observers* const observers_;
  // Process set of the last response that was passed to eligible().
  const NcclSet* found_ = nullptr;
  std::map<uint32_t, Set> settled_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<PinnedPool> pool_;
  // Streams for copies to the host (down) and back to the device (up).
  Device::Stream down_ = nullptr, up_ = nullptr;
  std::list<Flight> flights_;
  // Number of unnamed operations started so far in each process set. The number is the same on all ranks of the set.
  std::map<uint32_t, uint64_t> begun_;
  // Error of a launch that failed after the last call of advance().
  Status failure_;
  LaunchedOperations launched_;
  DeferredRelease deferred_;
};

}  // namespace hvd
