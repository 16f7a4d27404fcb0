// Operations on tensors of a device by way of the host: what every device can do, whatever lies between it and those of other ranks. Two
// operations of the engine make one of the program:
//
//   agreed on ---> start() ---> its data come to pinned memory; nobody waits for the device
//     of the device               |
//                                 v the copy has arrived here: advance() submits
//                               "NAME/staged" on host memory, agreed on and carried out as any other: it begins when every rank's data is
//                               there
//                                 |
//                                 v done
//                               the result is copied back behind it: the program's operation is done, which means launched (Completion)
//
// Ranks' devices may take their time, so their data is there at different times; agreement on the second operation is what waits for them,
// with all that belongs to waiting: deadlines, warnings, lost ranks. Large allreduces and broadcasts go in pieces: while one is reduced the
// next comes and the one before goes.
//
// Used only by whoever drives the engine.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collectives/comm.h"
#include "devices/pinned.h"
#include "engine/device/held.h"
#include "engine/observers.h"
#include "engine/submissions.h"

namespace hvd {

class Staged {
 public:
  Staged(Submissions* submissions, const Observers* observers) : submissions_(submissions), observers_(observers) {}
  ~Staged();

  // Begins to carry out `response` with this rank's operations, in the order of response.names; none of them when it has joined. All
  // members of the set call it for the same responses in the same order. An error means that the job is over.
  Status start(const Response& response, const Comm& comm, std::vector<OperationPtr> operations);

  // The set is new, with perhaps other members than one before it had.
  void forget(uint32_t set) { begun_.erase(set); }

  // What is done: launched, or failed.
  struct Done {
    std::vector<OperationPtr> operations;
    Status status;
  };
  // Looks at what is under way. True: something moved. An error means that the job is over.
  bool advance(std::vector<Done>* done, Status* status);
  bool idle() const { return flights_.empty(); }
  // How long to sleep at most before the next look.
  double resting_seconds() const;
  // The job is over: operations that are under way. Their memory is kept for as long as the device uses it.
  std::vector<OperationPtr> take_all();

 private:
  using Block = std::shared_ptr<PinnedPool::Block>;
  struct Copy {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
  };
  // One operation on host memory.
  struct Part {
    std::vector<Block> blocks;
    OperationPtr host;
    Device::Event copied = nullptr;  // until the data is there
    Operation* for_output = nullptr;  // gets sizes and output of `host`
    std::vector<Copy> back;
    bool submitted = false, launched = false;
  };
  struct Flight {
    std::vector<OperationPtr> operations;
    std::vector<Part> parts;
    Status status;
    size_t open = 1;  // parts that are not launched; not 0 before it has begun
    Clock::time_point begun = Clock::now();
  };

  Status open();
  Status cut(const Response& response, const std::vector<OperationPtr>& operations, bool from, const std::string& name,
             std::vector<Part>* parts);
  Status whole(const Response& response, const Comm& comm, const OperationPtr& op, const std::string& name, Part* part);
  Status begin(const Response& response, const Comm& comm, Flight* flight);
  Status bring(const Copy& copy) { return device_->copy(copy.to, copy.from, copy.bytes, down_); }
  Status take(size_t bytes, Part* part, std::byte** out);
  Status look(Flight& flight, bool* moved, bool* copying);
  Status launch(Flight& flight, Part& part);
  Status settle(Flight& flight, std::vector<Done>* done);
  void hold(const std::shared_ptr<const Completion>& until, Flight& flight);

  Submissions* const submissions_;
  const Observers* const observers_;
  std::shared_ptr<Device> device_;  // of the first operation; all are on the same
  std::shared_ptr<PinnedPool> pool_;
  Device::Stream down_ = nullptr, up_ = nullptr;  // to the host, and back
  std::deque<Flight> flights_;
  std::map<uint32_t, uint64_t> begun_;  // responses, by process set
  uint64_t flights_begun_ = 0;
  Held held_;
};

}  // namespace hvd
