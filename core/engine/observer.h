// Observer: receives the events of an engine. The engine knows nothing else about its listeners; counters
// (engine/counters.h), timeline and flight recorder are implementations. Several may listen at once. They may be added
// and removed while the engine runs (engine/observers.h).
//
// A negotiated operation has the events submitted, requested, agreed, started and finished. An operation of a schedule
// has only submitted, started and finished, between schedule_begun and schedule_ended.
//
// Threads: submitted() and refused() are called by the submitting thread, possibly by several threads at once. All
// other functions are called by the thread that drives the engine (the engine's own or a waiting caller): never two at
// once, and each call sees the effects of the one before. Callbacks must not throw, wait for an operation, or keep a
// reference, because arguments live only until the call returns.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "agree/negotiate.h"
#include "agree/schedule.h"
#include "backends/backend.h"
#include "engine/operation.h"

namespace hvd {

// One agreed operation that this rank executes, possibly with several tensors.
struct Execution {
  const Response& response;
  // This rank's operations, in the order of response.names. A null entry means that this rank has joined and
  // contributes zeros.
  std::span<Operation* const> operations;
  const Comm& comm;
  const Backend& backend;
  // Bytes of this rank's tensors: the input of an allreduce, broadcast or reducescatter, or the output of an allgather
  // or alltoall.
  uint64_t bytes = 0;
  // True if the vote carried the data (engine/schedule_sync.h). Such an execution is reported after all ranks have
  // voted for it.
  bool guarded = false;
  // Place in the order of operations that all ranks share, counted from 1. All parts of a bucket (Schedule::Bucket)
  // share one number.
  uint64_t number = 0;

  // Return the name of the algorithm, for example "shm" or "ring", computed on demand. It is "none" for a rank that is
  // alone, and "guarded" if the vote carried the data.
  std::string_view algorithm() const;
};

// Phases of an execution.
enum class Phase : uint8_t {
  allocate_output,
  copy_in,  // Several tensors are packed, or values are prescaled.
  carry,    // The backend executes the operation.
  copy_out,
};

class Observer {
 public:
  virtual ~Observer() = default;

  // Return true to receive submitted() and refused(). Without such an observer, submitting threads pay nothing. The
  // value must not change.
  virtual bool wants_submissions() const { return false; }
  // Return true to have Operation::submitted_ticks set, which costs submitting threads a clock reading. The value must
  // not change.
  virtual bool wants_submission_times() const { return false; }
  // An operation is about to be queued. Other threads do not see it yet, and an unnamed operation has no name yet.
  virtual void submitted(const Operation&) {}
  // The operation was not accepted; its caller gets the error.
  virtual void refused(const Operation&, const Status&) {}

  // Requests are sent to the coordinator in one message. Some may be repeats, if a schedule ended before it executed
  // them.
  virtual void requested(std::span<const Request>) {}
  // Rank 0 only: requests of a rank (possibly rank 0 itself) have arrived. Some may be repeats, as above.
  virtual void noticed(int /*from*/, std::span<const Request>) {}
  // Rank 0 only: the coordinator has decided on these operations.
  virtual void decided(std::span<const Response>) {}
  // The next operations for all ranks have arrived from the coordinator.
  virtual void agreed(std::span<const Response>) {}
  virtual void started(const Execution&) {}
  // The last started execution has entered a phase. A phase ends at the next one or at finished().
  virtual void entered(const Execution&, Phase) {}
  // The execution has ended. An error means that the job is over; see ended().
  virtual void finished(const Execution&, const Status&) {}
  // These operations fail on all ranks with the response's error, and the job continues.
  virtual void failed(const Response&) {}

  virtual void schedule_begun(const Schedule&) {}
  // A bucket was executed, with one started() and finished() for each of its parts.
  virtual void bucket_done(const Schedule::Bucket&) {}
  // The ranks have returned to negotiation, after this many buckets since schedule_begun().
  virtual void schedule_ended(const Schedule&, uint64_t) {}

  // Rank 0 only: operations that wait for ranks which have not submitted them. `now` is on the clock of
  // Waiting::requested. Each stall warning reports the operations past the warning time. A request (see
  // MessageBus::ask_who_waits()) reports all waiting operations, with `asked` true.
  virtual void waiting(std::span<const Negotiator::Waiting>, double /*now*/, bool /*asked*/) {}
  // This rank has waited long and rank 0 does not report it (agree/stall.h); sent with each such warning. `silent`
  // lists the ranks whose engines do not answer, as far as they are known.
  virtual void unnoticed(std::string_view /*text*/, std::span<const int> /*silent*/) {}
  // A message from an observer of rank `from` has arrived; see MessageBus.
  virtual void heard(int /*from*/, uint32_t /*topic*/, std::string_view /*body*/) {}

  // The engine's thread, or a driving caller, goes to sleep for at most this many seconds. A caller may drive while the
  // thread sleeps, so other events may occur before awake(). An observer that was added meanwhile receives only
  // awake().
  virtual void asleep(double) {}
  virtual void awake() {}
  // An estimate of the CPU time in ns spent outside collectives, scaled up from a sample of the turns.
  virtual void worked(uint64_t) {}
  // The job is over on this rank. Called once. finished() may still follow for an operation that was being executed.
  virtual void ended(const Status&) {}
};

}  // namespace hvd
