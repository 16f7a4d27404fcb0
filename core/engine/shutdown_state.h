// Shutdown state of this rank. It records which ranks have left, the last operation in which each took part, and why
// the job ended. It does no I/O; engine/driver_end.cc acts on it.
//
// At first, no rank has left. A goodbye message changes the state to "leaving": operations up to the number in the message still complete,
// later ones are not started or are abandoned. Once those operations are done, the state becomes "over". It becomes "over" immediately if a
// rank is lost, a collective fails, or this program leaves.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/status.h"
#include "engine/protocol.h"

namespace hvd {

class ShutdownState {
 public:
  // ---- State of the other ranks -------------------------------------------------------------------------------------

  // Record that `rank` has left, so that its closed links do not count as a lost rank.
  void parted(int rank) { parted_.insert(rank); }
  bool has_parted(int rank) const { return parted_.count(rank) != 0; }
  // Record a goodbye message. Operations up to the lowest number in any goodbye still complete.
  void add_goodbye(Goodbye goodbye) {
    if (!goodbye_ || goodbye.executed < goodbye_->executed) goodbye_ = std::move(goodbye);
  }
  bool leaving() const { return goodbye_.has_value(); }
  const Status& why() const { return goodbye_->why; }
  // True if a rank has left and takes no part in operation number `executed`. All ranks use the same numbers.
  bool excludes(uint64_t executed) const { return goodbye_ && executed > goodbye_->executed; }
  // True if a rank has left and all operations in which it takes part are done. `has_no_part` is true on a rank that takes no part in the
  // running schedule and thus does not count its operations. On such a rank, the departure alone is enough.
  bool departure_complete(uint64_t executed, bool has_no_part) const { return goodbye_ && (executed >= goodbye_->executed || has_no_part); }

  // ---- State of this rank -------------------------------------------------------------------------------------------

  // Return the number of operations to announce in this rank's goodbye: the number executed so far. A rank that takes no part in the
  // running schedule (`has_no_part`) does not count its operations, so it announces another rank's number if that is larger.
  uint64_t promise(uint64_t executed, bool has_no_part) const {
    return goodbye_ && has_no_part ? std::max(executed, goodbye_->executed) : executed;
  }
  bool over() const { return over_; }
  // Mark the job as over. Callers of unfinished operations get `error`.
  void end(Status error) {
    over_ = true;
    error_ = std::move(error);
  }
  const Status& error() const { return error_; }
  // Store the abort message, sent or received, that ended the job. When this rank leaves, it resends the message to its neighbours.
  void set_final_abort(Abort abort) { final_abort_ = std::move(abort); }
  const std::optional<Abort>& final_abort() const { return final_abort_; }

 private:
  std::optional<Goodbye> goodbye_;
  std::set<int> parted_;
  std::optional<Abort> final_abort_;
  bool over_ = false;
  Status error_;
};

// Request from outside the engine to end the job, for example from a launcher that has noticed the loss of a host. The driver's next turn,
// or the next check inside a running collective, ends the job as if a peer were lost.
class AbortRequest {
 public:
  // Request the end of the job. Only the first request counts. Callable from any thread.
  void request(Status why) {
    std::lock_guard lock(mutex_);
    if (requested()) return;
    why_ = std::move(why);
    requested_.store(true, std::memory_order_seq_cst);
  }

  // ---- Functions called by the driver -------------------------------------------------------------------------------
  bool requested() const { return requested_.load(std::memory_order_seq_cst); }
  // Return the reason for the request. Once requested() is true, it is valid and does not change.
  const Status& why() const { return why_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> requested_{false};
  Status why_;
};

}  // namespace hvd
