// Operations on tensors of GPUs among ranks of one host that read and write each other's memory there (CUDA IPC): several ranks on one GPU,
// which NCCL refuses, or no NCCL. What has to be reduced is reduced by our own kernels, in the order and so with the bits of the CPU.
//
//   unasked ---- each says where it is and what it has; opens what the others have made, reads a pattern there ----> by IPC
//                                |
//                                +------ one cannot ------------------------------------------------------------> by the host, for good
//
// A window of the tensors (engine/device/windows.h) at a time, each rank on its stream; nobody waits for the device:
//
//   put       own tensors are packed into the own buffer                                        tell `ready`
//   ---------- all have called that: a barrier of the hosts; what is waited for has to be known
//   work      wait for the others' `ready`; reduce from all buffers into all, or copy           tell `done`
//   ---------- all have called that
//   take      wait for `done` of those who wrote into the own buffer or read it; unpack
//
// There are two slots for windows, so between two barriers one is put, the one before worked on and the one before that taken. Only what is
// called earlier is ever waited for, so no circle of waits can come about, whatever the sets.
//
// Used only by whoever drives the engine.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/log.h"
#include "engine/device/compute.h"
#include "engine/device/exchange.h"
#include "engine/device/in_flight.h"
#include "engine/device/windows.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "engine/world.h"

namespace hvd {

class ByIpc {
 public:
  ByIpc(const IpcOptions& options, World* world, Backend* host, LogSink log)
      : options_(options), world_(world), host_(host), log_(std::move(log)) {}

  // Is `response` carried out so? All members of the set ask this for the same responses in the same order. `device`: this rank's; null
  // when it has none yet. An error means that the job is over.
  Status asks(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // Launches it, with this rank's operations in the order of response.names; none of them when it has joined.
  Status start(const Response& response, Comm& comm, const std::vector<OperationPtr>& operations);

  // Something is launched, and not done as far as is known: look() at it from time to time, after resting_seconds(). An error: the device
  // has failed, and what others wait for will never be done.
  bool in_flight() const { return last_ != nullptr; }
  static double resting_seconds() { return kLook; }
  Status look();

  // The set is new, or is no more.
  void forget(uint32_t set) { sets_.erase(set); }
  // The job is over, because of `why`: what is launched and not done has failed, unless `well`: then all ranks have launched it.
  void end(const Status& why, bool well);
  // Until this rank's device has done what was launched and others' memory is closed; two seconds at most.
  void await_end();

 private:
  static constexpr double kLook = 3e-3;
  enum class State : uint8_t { unasked, by_ipc, by_host };
  struct Set {
    State state = State::unasked;
    Sharing sharing = Sharing::by_slices;
    size_t window = 0;  // bytes: what all have room for
    uint64_t windows = 0;  // that are behind it
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
  World* const world_;
  Backend* const host_;
  const LogSink log_;
  std::shared_ptr<Device> device_;
  std::optional<Compute> compute_;
  std::unique_ptr<Exchange> exchange_;
  bool warned_ = false;
  std::map<uint32_t, Set> sets_;
  InFlight in_flight_;
  std::shared_ptr<const Completion> last_;  // of all that is launched
  Clock::time_point next_look_{};
};

}  // namespace hvd
