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
// next comes and the one before goes. Each tensor is brought for itself, however it was fused, and in the same order on every rank; so the
// second operations repeat where the program does, and are part of schedules. They are fused again on the host.
//
// Data come as far as there is pinned memory for them, of which no more than some is used at a time: what was agreed on first comes first
// on all ranks, so the memory comes back.
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
#include "engine/device/pieces.h"
#include "engine/observers.h"
#include "engine/submissions.h"

namespace hvd {

class Staged {
 public:
  // `memory`: bytes of pinned memory in use at a time, fewer where there are not so many. More than a bucket of a schedule has, lest that
  // waits for what cannot come.
  Staged(size_t memory, Submissions* submissions, const Observers* observers)
      : memory_(memory), submissions_(submissions), observers_(observers) {}
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
  // Between the memory of the device and a place in that of the load.
  struct Copy {
    std::byte* device;
    size_t at;
    size_t bytes;
  };
  // One operation on host memory.
  struct Part {
    size_t load = 0;  // by index
    OperationPtr host;
    static constexpr size_t kNone = SIZE_MAX;
    size_t in = 0, out = kNone, residual = kNone;  // in the memory of the load
    std::vector<Copy> come, back;
    Device::Event copied = nullptr;  // of the first part of a load, until the data is there
    Operation* for_output = nullptr;  // gets sizes and output of `host`
    bool submitted = false, launched = false;
  };
  // Parts that are brought together, and their memory.
  struct Loaded {
    size_t bytes = 0;
    size_t first = 0, end = 0;  // of its parts
    size_t open = 0;  // of them, those that are not launched
    Block block;
  };
  struct Flight {
    std::vector<OperationPtr> operations;
    std::vector<Part> parts;
    std::vector<Loaded> loads;
    size_t brought = 0;  // loads
    uint64_t carrier = 0;
    Status status;
    size_t open = 1;  // parts that are not launched; not 0 before it has begun
    Clock::time_point begun = Clock::now();
  };

  Status open();
  void plan_pieces(const Response& response, bool from, const std::string& suffix, Flight* flight);
  void plan_whole(const Response& response, const Comm& comm, Operation& op, const std::string& name, Flight* flight);
  Loaded& add_load(size_t bytes, Flight* flight);
  Part& add_part(Request request, const Operation& op, std::string name, Flight* flight);
  Status bring_all();
  Status bring(Flight& flight, Loaded& load);
  bool room(const Loaded& load) const;
  Status look(Flight& flight, bool* moved, bool* copying);
  Status launch(Flight& flight, Part& part);
  Status settle(Flight& flight, std::vector<Done>* done);

  size_t memory_;
  Submissions* const submissions_;
  const Observers* const observers_;
  std::shared_ptr<Device> device_;  // of the first operation; all are on the same
  std::shared_ptr<PinnedPool> pool_, outputs_;  // the latter stay for as long as the program wants
  Device::Stream down_ = nullptr, up_ = nullptr;  // to the host, and back
  std::deque<Flight> flights_;
  std::map<uint32_t, uint64_t> begun_;  // responses, by process set
  uint64_t window_ = 0;  // parts of one window may be fused with one another: so many bytes as come at once
  size_t window_bytes_ = 0;
  Held held_;
};

}  // namespace hvd
