// Interface through which the engine reports its events. The engine knows its listeners only through this interface.
// Counters (engine/counters.h), the timeline and the flight recorder are observers. Several observers can listen at the
// same time. They can be added and removed while the engine runs (engine/observers.h).
//
// A negotiated operation goes through the events submitted, requested, agreed, started and finished. An operation of a
// schedule goes only through submitted, started and finished, between schedule_begun and schedule_ended.
//
// Submitting threads call submitted() and refused(), possibly at the same time. The thread that runs the progress loop calls all other
// functions. Their calls never overlap, and each sees the effects of the one before. Callbacks must not throw, wait for an operation, or
// keep a reference to an argument, which lives only until the call returns.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "agree/negotiate.h"
#include "agree/schedule.h"
#include "backends/backend.h"
#include "engine/operation.h"

namespace hvd {

// Agreed operation, possibly of several tensors, that this rank executes.
struct Execution {
  const Response& response;
  // This rank's operations, in the order of response.names. A null entry means that this rank has called join() and
  // contributes zeros.
  std::span<Operation* const> operations;
  const Comm& comm;
  const Backend& backend;
  // Total size in bytes of this rank's tensors: the input of an allreduce, broadcast or reducescatter, or the output of
  // an allgather or alltoall.
  uint64_t bytes = 0;
  // True if the data traveled with the readiness vote (engine/schedule_sync.h). The execution is then reported after the vote.
  bool guarded = false;
  // Position in the order of operations that all ranks share, counted from 1. All responses of a bucket
  // (Schedule::Bucket) have the same number.
  uint64_t number = 0;

  // Return the name of the algorithm, for example "shm" or "ring". It is "none" for a rank that is alone, and "guarded" if the data
  // traveled with the readiness vote. Computed on demand.
  std::string_view algorithm() const;
};

enum class Phase : uint8_t {
  allocate_output,
  // Phase in which the inputs are copied, to pack several tensors or to prescale values.
  copy_in,
  // Phase in which the backend executes the operation.
  carry,
  copy_out,
};

class Observer {
 public:
  virtual ~Observer() = default;

  // True if the observer needs submitted() and refused(), which cost nothing if no observer needs them. The value must not change.
  virtual bool wants_submissions() const { return false; }
  // True if the observer needs Operation::submitted_ticks, for which each submission must read a clock. The value must
  // not change.
  virtual bool wants_submission_times() const { return false; }
  // Called just before an operation is queued. No other thread can access it yet, and an unnamed operation has no generated name yet.
  virtual void submitted(const Operation&) {}
  // Called when an operation is rejected. Its caller gets the error.
  virtual void refused(const Operation&, const Status&) {}

  // Called when requests are sent to the coordinator in one message. Requests are repeated if a schedule ended before
  // it executed them.
  virtual void requested(std::span<const Request>) {}
  // Rank 0 only: called when requests of a rank (including rank 0) have arrived. Some can repeat earlier requests.
  virtual void noticed(int /*from*/, std::span<const Request>) {}
  // Rank 0 only: called when the coordinator has decided on these operations.
  virtual void decided(std::span<const Response>) {}
  // Called when the next operations for all ranks have arrived from the coordinator.
  virtual void agreed(std::span<const Response>) {}
  virtual void started(const Execution&) {}
  // Called when the latest execution enters a phase. A phase ends at the next one or at finished().
  virtual void entered(const Execution&, Phase) {}
  // Called when the execution has finished. An error means that the job is over; see ended().
  virtual void finished(const Execution&, const Status&) {}
  // Called when all ranks fail the operations of a response with its error. The job continues.
  virtual void failed(const Response&) {}

  virtual void schedule_begun(const Schedule&) {}
  // Called when a bucket has been executed, after started() and finished() for each of its responses.
  virtual void bucket_done(const Schedule::Bucket&) {}
  // Called when the ranks have returned to negotiation, with the number of buckets executed since schedule_begun().
  virtual void schedule_ended(const Schedule&, uint64_t) {}

  // Rank 0 only: called for operations that wait for ranks which have not submitted them. `now` is a time of the same clock as
  // Waiting::requested. A stall warning reports only the operations past the warning time. A request of an observer (`asked`, see
  // MessageBus::ask_who_waits()) reports all waiting operations.
  virtual void waiting(std::span<const Negotiator::Waiting>, double /*now*/, bool /*asked*/) {}
  // Called when this rank warns about its own long wait, which rank 0 has not reported (agree/stall.h). `silent` lists the ranks that are
  // known not to respond.
  virtual void unnoticed(std::string_view /*text*/, std::span<const int> /*silent*/) {}
  // Called when a message from an observer of rank `from` has arrived; see MessageBus.
  virtual void received(int /*from*/, uint32_t /*topic*/, std::string_view /*body*/) {}

  // Called before the thread that runs the progress loop sleeps, with the maximum sleep in seconds. While the engine's thread sleeps,
  // callers can run the loop, so other events can occur before awake(). An observer that was added in between receives only awake().
  virtual void asleep(double) {}
  virtual void awake() {}
  // Called with the estimated CPU time in nanoseconds that the progress loop spends outside collectives. It is measured for a sample of the
  // iterations.
  virtual void worked(uint64_t) {}
  // Called once, when the job ends on this rank. If an operation is being executed then, finished() follows.
  virtual void ended(const Status&) {}
};

}  // namespace hvd
