#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collectives/comm.h"
#include "devices/pinned.h"
#include "engine/device/completion.h"
#include "engine/device/splitting.h"
#include "engine/observers.h"
#include "engine/operation.h"
#include "engine/submissions.h"

namespace hvd {

// Return a new number that links device operations of the program to the host operations (parts) that carry them out. Device operations
// store it in OnDevice::carried, and parts in Operation::carries.
uint64_t new_carrier(const std::vector<OperationPtr>& operations);

// Create a host operation that carries out all or some of a device operation's work. Such a host operation is called a part. The caller
// sets `in` and `out`, and calls Submissions::expect().
OperationPtr host_part(Request request, std::string name, uint64_t carrier);

// Submit a part (host_part()) whose data are ready. If the engine rejects it, the part completes immediately with the error.
void submit_host_part(const OperationPtr& part, Submissions* submissions, const Observers& observers);

// Return the maximum seconds to sleep between two checks of copies, of which the oldest was started at `begun`.
double resting_seconds_after(Clock::time_point begun);

// Host-staged path, which executes device operations through host memory. It works for every device and interconnect.
// Each operation of the program becomes two operations of the engine, one on the device and one on the host.
//
// The steps of an operation:
//   1. Once the ranks have agreed on the device operation, start() copies its data to pinned memory, without waiting
//      for the device.
//   2. When the copy has arrived, advance() submits the operation "NAME/staged" on host memory. It is negotiated and
//      executed like any other operation, so it starts when every rank's data have arrived.
//   3. When "NAME/staged" is complete, the result is copied back. The program's operation counts as done once the copy
//      is launched.
//
// Devices are ready at different times. The negotiation of the host operation waits for all of them, with timeouts, stall warnings and the
// detection of lost ranks. Large allreduces and broadcasts are split into pieces, so that copies in both directions overlap with the
// reduction. Each tensor is copied separately, regardless of fusion, and in the same order on every rank. The host operations are therefore
// equal in every step, so they become part of schedules and are fused again.
//
// New copies start only while pinned memory is available, up to a limit. All ranks process operations in the same order, so memory in use
// always becomes free eventually.
//
// Not thread-safe; used only by the thread that runs the engine's progress loop.
class HostStagedPath {
 public:
  // `memory` is the maximum number of bytes of pinned memory in use at a time. The limit shrinks if less is available. It must exceed the
  // need of one bucket of a schedule, which would otherwise wait forever.
  HostStagedPath(size_t memory, Submissions* submissions, const Observers* observers)
      : memory_(memory), submissions_(submissions), observers_(observers) {}
  ~HostStagedPath();

  // Start executing `response` with this rank's operations, given in the order of response.names. The list is empty if
  // this rank has called join(). All ranks of the set must call this for the same responses in the same order. An error
  // ends the job.
  Status start(const Response& response, const Comm& comm, std::vector<OperationPtr> operations);

  // Delete the state of a process set, when a new set gets the same id, possibly with other ranks.
  void forget(uint32_t set) { begun_.erase(set); }

  // Operations of one response that are launched completely, or that have failed with `status`.
  struct Done {
    std::vector<OperationPtr> operations;
    Status status;
  };
  // Advance the operations in flight. Return true if any operation made progress. An error in `status` ends the job.
  bool advance(std::vector<Done>* done, Status* status);
  bool idle() const { return flights_.empty(); }
  // Return the maximum number of seconds to sleep before advance() must be called again.
  double resting_seconds() const;
  // Remove and return all operations that are still in flight when the job ends. Their memory is kept while the device
  // uses it.
  std::vector<OperationPtr> take_all();

 private:
  using Block = std::shared_ptr<PinnedPool::Block>;
  // One copy between device memory and pinned host memory. `at` is the byte offset in the pinned memory of the batch.
  struct Copy {
    std::byte* device;
    size_t at;
    size_t bytes;
  };
  // Host-memory operation that carries out the user's operation, or a piece of it.
  struct Part {
    // Index in Flight::loads of the part's batch: parts that are copied together.
    size_t load = 0;
    OperationPtr host;
    static constexpr size_t kNone = SIZE_MAX;
    // Byte offsets of input, output and residual in the pinned memory of the batch.
    size_t in = 0, out = kNone, residual = kNone;
    std::vector<Copy> come, back;
    // Event after the copies of the whole batch, stored in its first part. Null once the device has reached it.
    Device::Event copied = nullptr;
    // Operation of the program that gets the sizes and output of `host`, or null.
    Operation* for_output = nullptr;
    bool submitted = false, launched = false;
  };
  // Batch: several parts that are copied together, and the pinned memory that they share.
  struct Loaded {
    size_t bytes = 0;
    // The batch consists of the parts [first, end) of Flight::parts.
    size_t first = 0, end = 0;
    // Number of parts of this batch whose copies back have not been launched.
    size_t open = 0;
    Block block;
  };
  struct Flight {
    std::vector<OperationPtr> operations;
    std::vector<Part> parts;
    std::vector<Loaded> loads;
    // Number of batches whose copies to host memory have started.
    size_t brought = 0;
    uint64_t carrier = 0;
    Status status;
    // Number of parts whose copies back have not been launched. Initially 1, so that the operation does not look complete before it is
    // planned.
    size_t open = 1;
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
  // Device that all operations of this rank use.
  std::shared_ptr<Device> device_;
  // Pinned memory for copies (pool_), and for outputs that the program keeps (outputs_).
  std::shared_ptr<PinnedPool> pool_, outputs_;
  // Streams for copies to the host (down) and back to the device (up).
  Device::Stream down_ = nullptr, up_ = nullptr;
  std::deque<Flight> flights_;
  // Number of responses started so far in each process set.
  std::map<uint32_t, uint64_t> begun_;
  // Number of the current window. A window is host operations with a limited total size; operations of different windows are never fused.
  uint64_t window_ = 0;
  size_t window_bytes_ = 0;
  DeferredRelease deferred_;
};

}  // namespace hvd
