// Allreduces of tensors on GPUs, in steps: NCCL reduces inside each host, which leaves each rank a part of its host's result; the parts of
// the same place travel between hosts by the engine's own links (Request::across_hosts); NCCL collects the result inside each host. So
// each rank moves its part alone through the memory of its host. For sets that NCCL cannot connect as a whole, and where
// HOROVOD_HIERARCHICAL_ALLREDUCE asks for it.
//
//   start() ---> pack, NCCL reduces inside the host; advance() has parts come to pinned memory; nobody waits for the device
//                  |
//                  v the copy has arrived here: advance() submits
//                "NAME/hosts" on host memory, agreed on and carried out as any other
//                  |
//                  v done, in the common order: the part goes back, NCCL collects, unpack: the program's operation is done, which means
//                  launched
//
// Used only by whoever drives the engine.
#pragma once
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "devices/pinned.h"
#include "engine/device/by_nccl_sets.h"
#include "engine/device/held.h"
#include "engine/device/host_part.h"
#include "engine/device/launched.h"
#include "engine/device/part_plan.h"
#include "engine/device/staged.h"
#include "engine/observers.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "engine/submissions.h"
#include "nccl/decide.h"

namespace hvd {

class ByHosts {
 public:
  // `options.by_hosts` is left to whoever asks. `staged_memory`: bytes of pinned memory in use at a time, one part's at least, and fewer
  // where there are not so many.
  ByHosts(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common, size_t staged_memory, Submissions* submissions,
          const Observers* observers)
      : wanted_(options.kinds[static_cast<size_t>(Kind::allreduce)]), host_(host), log_(log), sets_(options, host, std::move(log), common),
        staged_memory_(staged_memory), submissions_(submissions), observers_(observers) {}
  ~ByHosts() { take_all(); }

  // May `response` go this way, as far as it alone says? Not, for example, while a rank has joined.
  bool fits(const Response& response, const Comm& comm) const;
  // Does it? All members of the set ask this for the same responses, of those that fit, in the same order. An error means that the job is
  // over.
  Status asks(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // Is it settled that this way is closed to the set? The same on all members.
  bool gives_up(uint32_t set) const {
    const auto it = settled_.find(set);
    return it != settled_.end() && it->second.way == Way::no;
  }
  // Begins to carry it out with this rank's operations, in the order of response.names. An error means that the job is over.
  Status start(const Response& response, const Comm& comm, std::vector<OperationPtr> operations);

  // Looks at what is under way. True: something moved. An error means that the job is over.
  bool advance(std::vector<Staged::Done>* done, Status* status);
  bool idle() const { return flights_.empty(); }
  // How long to sleep at most before the next look.
  double resting_seconds() const { return resting_seconds_after(flights_.front().begun); }

  // As with ByNccl: something is launched and not done, as far as is known. Also when nothing is under way any more.
  bool in_flight() const { return !launched_.empty(); }
  Status look() { return launched_.empty() ? Status() : launched_.look(sets_).with(device_->description()); }

  void forget(uint32_t set);
  // The job is over: operations that are under way. Their memory is kept for as long as the device uses it.
  std::vector<OperationPtr> take_all();
  // Ends the communicators: destroys them where all is well, which `why` says by being ok, else aborts.
  void end(const Status& why);
  void await_end() { sets_.await_end(); }

 private:
  enum class Way : uint8_t { unsettled, yes, no };
  // What the ranks of all hosts agree on about a set.
  struct Set {
    Way way = Way::unsettled;
    int version = 0, capability = 0;  // the least
  };
  struct Word;
  struct Flight;
  struct Part {
    ByHosts* self = nullptr;
    Flight* flight = nullptr;
    PartPlan plan;
    std::shared_ptr<const Completion> reduced;  // inside the host, until it is brought
    std::shared_ptr<PinnedPool::Block> pinned;
    OperationPtr host;
    Device::Event copied = nullptr;  // until the data is there
  };
  struct Flight {
    std::vector<OperationPtr> operations;
    std::string what;  // for messages
    std::shared_ptr<nccl::Communicator> communicator;  // of the host's members
    Request between;  // what the hosts do with each part
    std::string name;  // of the first part
    int members = 1, me = 0;
    std::shared_ptr<GpuMemory::Block> buffer;
    std::vector<Part> parts;
    uint64_t carrier = 0;
    size_t brought = 0, submitted = 0, open = 0;  // parts; open: not collected
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
  NcclSets sets_;  // of the members on this host
  size_t staged_memory_;
  Submissions* const submissions_;
  const Observers* const observers_;
  const NcclSet* found_ = nullptr;  // of the response that was asked about last
  std::map<uint32_t, Set> settled_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<PinnedPool> pool_;
  Device::Stream down_ = nullptr, up_ = nullptr;  // to the host, and back
  std::list<Flight> flights_;
  std::map<uint32_t, uint64_t> begun_;  // flights without a name, by set: the same on all its members
  Status failure_;  // of a launch between two looks
  Launched launched_;
  Held held_;
};

}  // namespace hvd
