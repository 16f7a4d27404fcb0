// NCCL's communicators of process sets: whether there can be one, making it, its end.
//
//   unasked ---- each says what it has: a GPU, NCCL ----> making ---- each says when it is made ----> by NCCL
//                                |                           |
//                                +------ one cannot ---------+---- it takes too long -----------> by the host, for good
//
// Ranks decide this together, for each response, through the host's collectives: they meet the same responses in the same order, so what
// they say about one belongs together. Where there is nothing left to decide nothing is said.
//
// Used only by whoever drives the engine.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/deadline.h"
#include "base/log.h"
#include "devices/device.h"
#include "engine/device/by_nccl_memory.h"
#include "engine/device/compute.h"
#include "engine/options.h"
#include "nccl/communicator.h"

namespace hvd {

// What all members of a set have.
struct NcclSet {
  std::shared_ptr<nccl::Communicator> communicator;
  int version = 0;     // of NCCL
  int capability = 0;  // the least of their GPUs
  bool kernels = false;  // of our own can be launched
};

// What all communicators of a rank have in common, whoever keeps them: kernels of two of them must be in one order on all ranks.
struct NcclCommon {
  Device::Stream stream = nullptr;  // on which all that they do is launched
  std::shared_ptr<nccl::Communicator> first;  // the only one that may be warmed up, while it is made
  bool told_of_sharing = false;  // that ranks share a GPU
};

class NcclSets {
 public:
  NcclSets(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common)
      : options_(options), host_(host), log_(std::move(log)), common_(common) {}

  // Have all members of the set, which is `comm`, its communicator? Null: not yet, or for good. All ask this for the same responses in the
  // same order. `device`: this rank's; null when it has none yet. An error means that the job is over.
  Status find(uint32_t id, Comm& comm, const std::shared_ptr<Device>& device, const NcclSet** out);

  // Will `find` never have an answer for it? The same on all members.
  bool gives_up(uint32_t id) const;

  // On which all that they do is launched. Null before there is a communicator.
  Device::Stream stream() const { return common_->stream; }
  GpuMemory& memory() const { return *memory_; }
  Compute& compute() const { return *compute_; }
  // What NCCL has noticed by itself, in any set.
  Status async_error() const;

  // The set is new, or is no more: its communicator is destroyed, on a thread of its own.
  void forget(uint32_t id);
  // Of all: destroys them where `why` is ok, else aborts them, with those that are being destroyed and may wait for a lost rank.
  void end(const Status& why);
  // Until they have ended, some seconds at most. Then what they worked on is given back, or left to the end of the process.
  void await_end();

 private:
  enum class State : uint8_t { unasked, making, by_nccl, by_host };
  struct Set : NcclSet {
    State state = State::unasked;
    Clock::time_point begun;  // making it
    uint64_t waited = 0;      // responses since then: the same on all
    bool warned = false;
  };
  struct Record;
  struct Leaving {
    std::vector<std::shared_ptr<nccl::Communicator>> communicators;
    std::shared_ptr<nccl::Ending> ending;
    bool aborted = false;
    bool stuck() const { return !ending->over() || ending->leaked(); }
  };

  Record record();
  Status ask(Set* set, Comm& comm);
  std::string why_not(const Comm& comm, const std::vector<Record>& all) const;
  void warn_of_sharing(const Comm& comm, const std::vector<Record>& all);
  Status make(Set* set, Comm& comm, bool warm_up);
  Status prepare(const Comm& comm, bool warm_up, nccl::UniqueId* id, nccl::WarmUp* first);
  Status hear_whether_made(uint32_t id, Set* set, Comm& comm);
  void warn(uint32_t id, Set* set, const Comm& comm, const std::vector<std::byte>& made);
  void abandon(Set* set, const Status& why);
  void destroy(std::vector<std::shared_ptr<nccl::Communicator>> communicators);
  void abort(std::vector<std::shared_ptr<nccl::Communicator>> communicators, const Status& why);
  Status say(Comm& comm, const void* mine, size_t bytes, std::vector<std::byte>* all);
  void open();
  void give_up(Set* set, const std::string& why);

  const NcclOptions options_;
  Backend* const host_;
  const LogSink log_;
  std::shared_ptr<Device> device_;
  const nccl::Library* library_ = nullptr;
  std::string why_not_;  // there is no library
  bool looked_ = false;
  NcclCommon* const common_;
  std::shared_ptr<GpuMemory> memory_;
  std::unique_ptr<Compute> compute_;
  Status loaded_;  // its kernels
  std::vector<std::shared_ptr<GpuMemory::Block>> warmed_;  // used by the first operations of communicators
  std::map<uint32_t, Set> sets_;
  std::vector<Leaving> leaving_;  // perhaps over
};

}  // namespace hvd
