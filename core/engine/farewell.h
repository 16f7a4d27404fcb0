// Shutdown state of this rank: which ranks have left, up to which operation each took part, and the reason of the end.
// Pure; engine/driver_end.cc acts on it.
//
//   together --a rank sends goodbye--> leaving --all operations it promised are done--> over
//      |                                |
//      +------ a rank is lost, a collective fails, this program leaves -------> over
//
// While leaving, operations up to the promised number still complete; later ones are not started, or are abandoned.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "engine/protocol.h"

namespace hvd {

class Farewell {
 public:
  // ---- other ranks --------------------------------------------------------------------------------------------------
  // Record that `rank` has left: its links may close without counting as a loss.
  void parted(int rank) { parted_.insert(rank); }
  bool has_parted(int rank) const { return parted_.count(rank) != 0; }
  // Record a goodbye. Operations up to its number still complete; of several goodbyes the lowest number counts.
  void hear(Goodbye goodbye) {
    if (!goodbye_ || goodbye.executed < goodbye_->executed) goodbye_ = std::move(goodbye);
  }
  bool leaving() const { return goodbye_.has_value(); }
  const Status& why() const { return goodbye_->why; }
  // True if the operation being executed, number `executed` of the common order, is one that a rank which left takes no
  // part in.
  bool beyond(uint64_t executed) const { return goodbye_ && executed > goodbye_->executed; }
  // True if a rank has left and all operations it took part in are done. A rank without entries in the running schedule
  // is not affected by it and does not count its operations.
  bool past(uint64_t executed, bool has_no_part) const { return goodbye_ && (executed >= goodbye_->executed || has_no_part); }

  // ---- this rank ----------------------------------------------------------------------------------------------------
  // Return the number of operations that this rank's goodbye promises: those it has executed, because an earlier
  // goodbye may promise more than that. A rank without entries in the schedule keeps the earlier promise.
  uint64_t promise(uint64_t executed, bool has_no_part) const {
    return goodbye_ && has_no_part ? std::max(executed, goodbye_->executed) : executed;
  }
  bool over() const { return over_; }
  // Mark the job as over. `told`: the error for callers of unfinished operations.
  void end(Status told) {
    over_ = true;
    told_ = std::move(told);
  }
  const Status& told() const { return told_; }
  // Store the abort that ended the job, sent or received. It is repeated when this rank leaves, for neighbours that
  // have not received it.
  void say(Abort abort) { last_words_ = std::move(abort); }
  const std::optional<Abort>& last_words() const { return last_words_; }

 private:
  std::optional<Goodbye> goodbye_;
  std::set<int> parted_;
  std::optional<Abort> last_words_;
  bool over_ = false;
  Status told_;
};

}  // namespace hvd
