// How the job ends, as far as this rank knows: who has left, up to which operation that rank took part, and what was said at the end.
// Pure; engine/driver_end.cc acts.
//
//   together --a rank says goodbye--> leaving --all up to its promise done--> over
//      |                                 |
//      +------ a rank is lost, a collective fails, this program leaves ------> over
//
// Leaving, operations up to the promise still end well; what is beyond it is not begun, or given up.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "engine/protocol.h"

namespace hvd {

class Farewell {
 public:
  // ---- others -----------------------------------------------------------------------------------------------------------------
  // Its links may close from now on, and are no loss.
  void parted(int rank) { parted_.insert(rank); }
  bool has_parted(int rank) const { return parted_.count(rank) != 0; }
  // Operations up to a goodbye still end well: of several goodbyes, up to the one that promises least.
  void hear(Goodbye goodbye) {
    if (!goodbye_ || goodbye.executed < goodbye_->executed) goodbye_ = std::move(goodbye);
  }
  bool leaving() const { return goodbye_.has_value(); }
  const Status& why() const { return goodbye_->why; }
  // Is what is being executed, as number `executed` of the common order, something that a rank that has left takes no part in?
  bool beyond(uint64_t executed) const { return goodbye_ && executed > goodbye_->executed; }
  // Somebody has left, and all that it took part in is done. A rank without a part in the running schedule has nothing to do with
  // it, and does not count its operations while it runs.
  bool past(uint64_t executed, bool has_no_part) const { return goodbye_ && (executed >= goodbye_->executed || has_no_part); }

  // ---- this rank --------------------------------------------------------------------------------------------------------------
  // What a goodbye of this rank promises: what it has done itself, since the goodbye of who has left before may promise more than that.
  // Without a part it takes nothing back.
  uint64_t promise(uint64_t executed, bool has_no_part) const {
    return goodbye_ && has_no_part ? std::max(executed, goodbye_->executed) : executed;
  }
  bool over() const { return over_; }
  // `told`: what callers of unfinished operations hear.
  void end(Status told) {
    over_ = true;
    told_ = std::move(told);
  }
  const Status& told() const { return told_; }
  // The abort that ended the job, from here or heard; repeated when this rank leaves, for neighbours that it has not reached.
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
