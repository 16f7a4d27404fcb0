// Operations on tensors of GPUs carried out by NCCL, where all ranks of a set can. What NCCL cannot do, or not as our arithmetic has it,
// goes by way of the host (engine/device/staged.h), and so does everything until a set's communicator is there:
//
//   unasked ---- each says what it has: a GPU, NCCL ----> making ---- each says when it is made ----> by NCCL
//                                |                           |
//                                +------ one cannot ---------+----------------------------------> by the host, for good
//
// Ranks decide this together, for each response, through the host's collectives: they meet the same responses in the same order, so what
// they say about one belongs together. Where there is nothing left to decide nothing is said.
//
// Used only by whoever drives the engine.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/log.h"
#include "devices/device.h"
#include "engine/device/completion.h"
#include "engine/device/held.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "nccl/communicator.h"
#include "nccl/decide.h"

namespace hvd {

class ByNccl {
 public:
  ByNccl(const NcclOptions& options, Backend* host, LogSink log) : options_(options), host_(host), log_(std::move(log)) {}

  // Does NCCL carry out `response`? All members of the set ask this for the same responses in the same order. `device`: this rank's; null
  // when it has none yet. An error means that the job is over.
  Status asks(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, bool* yes);
  // Launches it, with this rank's operations in the order of response.names; none of them when it has joined.
  Status start(const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);

  // The set is new, or is no more.
  void forget(uint32_t set);
  // The job is over, because of `why`: communicators are destroyed where all is well (Code::shutdown, and `all_take_part` in what is
  // launched here), else aborted, on a thread of their own. What is launched and not done then has failed: its event fires over garbage.
  void end(const Status& why, bool all_take_part);
  // Until they have ended, some seconds at most: the process may be about to end, which it must not while NCCL works.
  void await_end();

 private:
  enum class State : uint8_t { unasked, making, by_nccl, by_host };
  struct Set {
    State state = State::unasked;
    std::shared_ptr<nccl::Communicator> communicator;
    int version = 0, capability = 0;
  };
  struct Record;

  Status ask(Set* set, Comm& comm);
  Status hear_whether_made(Set* set, Comm& comm);
  Status make(Set* set, Comm& comm, bool warm_up);
  Status say(Comm& comm, const void* mine, size_t bytes, std::vector<std::byte>* all);
  void open();
  void give_up(Set* set, const std::string& why);
  nccl::Reduction reduction(const Set& set, const Response& response, const Comm& comm) const;
  Status launch(const Set& set, const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);
  Status make_zeros(size_t bytes);
  void remember(const std::shared_ptr<const Completion>& completion);
  Status allreduce(const Set& set, const Response& response, const Comm& comm, const std::vector<OperationPtr>& operations);

  const NcclOptions options_;
  Backend* const host_;
  const LogSink log_;
  std::shared_ptr<Device> device_;
  const nccl::Library* library_ = nullptr;
  std::string why_not_;  // there is no library
  bool looked_ = false;
  Device::Stream stream_ = nullptr;
  void* zeros_ = nullptr;  // what this rank contributes when it has joined
  size_t zeros_bytes_ = 0;
  std::map<uint32_t, Set> sets_;
  std::deque<std::weak_ptr<const Completion>> launched_;  // whose result somebody may ask for; some may be there
  std::shared_ptr<nccl::Ending> ending_;
};

}  // namespace hvd
