// Observer: what an engine tells of itself. The engine knows nothing else of whoever listens; counters (engine/counters.h) are one
// implementation, a timeline or a flight recorder is another. Several may listen at once, and may come and go while the engine runs
// (engine/observers.h).
//
//   submitted -> announced -> agreed -> started -> finished            negotiated
//   submitted ----------------------------> started -> finished        by a schedule, between schedule_begun and schedule_ended
//
// Threads: submitted() and refused() are called by the thread that submits, perhaps by several at once. All others are called by
// whoever drives the engine, its own thread or a caller that waits: never two at once, each sees what the one before has left. Nothing
// here may throw, wait for an operation, or keep a reference: what is passed lives until the call returns.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "agree/negotiate.h"
#include "agree/schedule.h"
#include "backends/backend.h"
#include "engine/operation.h"

namespace hvd {

// One agreed operation, perhaps of several tensors, that this rank carries out.
struct Execution {
  const Response& response;
  std::span<Operation* const> operations;  // this rank's, by response.names; null: it has joined and contributes zeros
  const Comm& comm;
  const Backend& backend;
  // This rank's: what goes into an allreduce, a broadcast or a reducescatter, what comes out of an allgather or an alltoall.
  uint64_t bytes = 0;
  bool guarded = false;  // the vote on it carried the data (engine/guard.h); told of once everybody has voted for it
  // Its place in the order of operations that all ranks share, from 1. Parts of one bucket (Schedule::Bucket) share it.
  uint64_t number = 0;

  // Found when asked for: "shm", "ring", ...; "none" for a rank alone, "guarded".
  std::string_view algorithm() const;
};

// What an execution is at.
enum class Phase : uint8_t {
  allocate_output,
  copy_in,  // several tensors are laid next to each other, or scaled beforehand
  carry,    // the backend has it
  copy_out,
};

class Observer {
 public:
  virtual ~Observer() = default;

  // Does it want submitted() and refused()? Others cost submitting threads nothing. The answer must not change.
  virtual bool wants_submissions() const { return false; }
  // Does it want Operation::submitted_ticks? That costs submitting threads a look at the clock. The answer must not change.
  virtual bool wants_submission_times() const { return false; }
  // An operation is about to be queued; nobody else knows it yet. An unnamed one has no name so far.
  virtual void submitted(const Operation&) {}
  // That operation is not accepted: its caller gets the error.
  virtual void refused(const Operation&, const Status&) {}

  // Requests go to the coordinator in one message. Some of them perhaps again, after a schedule that did not take them.
  virtual void announced(std::span<const Request>) {}
  // Rank 0 alone: that rank's requests, or its own, have arrived; some of them perhaps in vain, as above.
  virtual void noticed(int /*from*/, std::span<const Request>) {}
  // Rank 0 alone: the coordinator has decided these.
  virtual void decided(std::span<const Response>) {}
  // What all ranks are to do next has arrived.
  virtual void agreed(std::span<const Response>) {}
  virtual void started(const Execution&) {}
  // Of the execution that has started last. Each ends where the next begins, or with finished().
  virtual void entered(const Execution&, Phase) {}
  // An error means that the job is over, see ended().
  virtual void finished(const Execution&, const Status&) {}
  // All ranks fail these operations with the response's error; the job goes on.
  virtual void failed(const Response&) {}

  virtual void schedule_begun(const Schedule&) {}
  // A bucket of it has been carried out: one started() and finished() for each of its parts.
  virtual void bucket_done(const Schedule::Bucket&) {}
  // Back to negotiation, after so many buckets since schedule_begun().
  virtual void schedule_ended(const Schedule&, uint64_t) {}

  // Rank 0 alone: these wait for ranks that have not submitted them, at `now` on the clock of Waiting::announced. Told with each warning
  // about a stall, of those that have waited for the warning time; and of all that wait when somebody has asked (`asked`, Notes).
  virtual void waiting(std::span<const Negotiator::Waiting>, double /*now*/, bool /*asked*/) {}
  // This rank has waited for long, and rank 0 says nothing of it (agree/watch.h): told with each warning about that. `silent`: the ranks
  // whose engines do not answer, where that is known.
  virtual void unnoticed(std::string_view /*text*/, std::span<const int> /*silent*/) {}
  // A note from an observer of that rank, see Notes.
  virtual void heard(int /*from*/, uint32_t /*topic*/, std::string_view /*body*/) {}

  // The engine's thread goes to sleep until something happens, at most for so many seconds, or a caller that drives does. A caller may
  // drive while the thread sleeps, so other events may come in between; who begins to listen meanwhile hears awake() alone.
  virtual void asleep(double) {}
  virtual void awake() {}
  // CPU time in ns that a share of the turns took beside collectives, scaled up to all of them: an estimate.
  virtual void worked(uint64_t) {}
  // The job is over on this rank. Once; of an operation that was under way when it was heard, finished() may follow.
  virtual void ended(const Status&) {}
};

}  // namespace hvd
