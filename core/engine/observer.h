// Observer: events of an engine. The engine knows nothing else about its listeners; counters (engine/counters.h),
// timeline and flight recorder are implementations. Several may listen at once, and may be added and removed while the
// engine runs (engine/observers.h).
//
//   submitted -> requested -> agreed -> started -> finished            negotiated
//   submitted ----------------------------> started -> finished        by a schedule, between schedule_begun and schedule_ended
//
// Threads: submitted() and refused() are called by the submitting thread, possibly by several at once. All others are
// called by the thread that drives the engine (its own or a waiting caller): never two at once, and each sees the
// effects of the one before. Callbacks must not throw, wait for an operation, or keep a reference: arguments live until
// the call returns.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "agree/negotiate.h"
#include "agree/schedule.h"
#include "backends/backend.h"
#include "engine/operation.h"

namespace hvd {

// One agreed operation, possibly of several tensors, that this rank executes.
struct Execution {
  const Response& response;
  // This rank's, in the order of response.names; null: it has joined and contributes zeros.
  std::span<Operation* const> operations;
  const Comm& comm;
  const Backend& backend;
  // Bytes of this rank: the input of an allreduce, broadcast or reducescatter, the output of an allgather or alltoall.
  uint64_t bytes = 0;
  bool guarded = false;  // The vote carried the data (engine/schedule_sync.h); reported after all ranks voted for it.
  // Place in the order of operations that all ranks share, from 1. The parts of a bucket (Schedule::Bucket) share one
  // number.
  uint64_t number = 0;

  // Algorithm name, computed on demand: "shm", "ring", ...; "none" for a rank alone, or "guarded".
  std::string_view algorithm() const;
};

// Phases of an execution.
enum class Phase : uint8_t {
  allocate_output,
  copy_in,  // Pack several tensors, or prescale.
  carry,    // Executed by the backend.
  copy_out,
};

class Observer {
 public:
  virtual ~Observer() = default;

  // True to receive submitted() and refused(); otherwise submitting threads pay nothing. Must not change.
  virtual bool wants_submissions() const { return false; }
  // True to have Operation::submitted_ticks set, which costs submitting threads a clock reading. Must not change.
  virtual bool wants_submission_times() const { return false; }
  // An operation is about to be queued. Not yet visible to other threads; an unnamed one has no name yet.
  virtual void submitted(const Operation&) {}
  // The operation was not accepted; its caller gets the error.
  virtual void refused(const Operation&, const Status&) {}

  // Requests are sent to the coordinator in one message. Some may be repeated after a schedule that did not take them.
  virtual void requested(std::span<const Request>) {}
  // Rank 0 only: requests of a rank (including rank 0) have arrived. Some may be repeats, as above.
  virtual void noticed(int /*from*/, std::span<const Request>) {}
  // Rank 0 only: the coordinator has decided these.
  virtual void decided(std::span<const Response>) {}
  // The next operations for all ranks have arrived.
  virtual void agreed(std::span<const Response>) {}
  virtual void started(const Execution&) {}
  // The last started execution entered a phase. A phase ends at the next one or at finished().
  virtual void entered(const Execution&, Phase) {}
  // An error means that the job is over, see ended().
  virtual void finished(const Execution&, const Status&) {}
  // These operations fail on all ranks with the response's error; the job continues.
  virtual void failed(const Response&) {}

  virtual void schedule_begun(const Schedule&) {}
  // A bucket was executed: one started() and finished() per part.
  virtual void bucket_done(const Schedule::Bucket&) {}
  // Back to negotiation, after this many buckets since schedule_begun().
  virtual void schedule_ended(const Schedule&, uint64_t) {}

  // Rank 0 only: operations that wait for ranks which have not submitted them, at `now` on the clock of
  // Waiting::requested. Sent with each stall warning, for those past the warning time; and for all waiting ones on
  // request (`asked`, see MessageBus).
  virtual void waiting(std::span<const Negotiator::Waiting>, double /*now*/, bool /*asked*/) {}
  // This rank has waited long and rank 0 does not report it (agree/stall.h); sent with each warning. `silent`: the
  // ranks whose engines do not answer, where known.
  virtual void unnoticed(std::string_view /*text*/, std::span<const int> /*silent*/) {}
  // A message from an observer of rank `from`, see MessageBus.
  virtual void heard(int /*from*/, uint32_t /*topic*/, std::string_view /*body*/) {}

  // The engine's thread, or a driving caller, goes to sleep for at most this many seconds. A caller may drive while the
  // thread sleeps, so other events may come in between; an observer added meanwhile receives awake() only.
  virtual void asleep(double) {}
  virtual void awake() {}
  // Estimated CPU time in ns outside collectives, scaled up from a sample of the turns.
  virtual void worked(uint64_t) {}
  // The job is over on this rank. Called once; finished() may still follow for an operation that was being executed.
  virtual void ended(const Status&) {}
};

}  // namespace hvd
