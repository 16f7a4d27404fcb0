// Variant of Wait (waiter.h) for a condition without wakeup, which may need polling to make progress, such as the
// completion of an MPI operation. Polls often at first; later it rests for a fraction of the time waited so far, which
// adds little latency but keeps the operation progressing.
//
//   PolledWait wait(waiter, 30, "MPI_Iallreduce with ranks 0, 1");
//   while (!done()) HVD_RETURN_IF_ERROR(wait.pause());
#pragma once
#include <string>

#include "base/deadline.h"
#include "base/status.h"
#include "transport/waiter.h"

namespace hvd {

class PolledWait {
 public:
  // `what` completes the sentence "no progress for 30 s while waiting for ..."; both must outlive this.
  PolledWait(Waiter& waiter, double timeout_seconds, const std::function<std::string()>& what)
      : waiter_(waiter), timeout_(timeout_seconds), what_(what) {}
  PolledWait(const PolledWait&) = delete;

  // Return when the condition should be checked again. An error means that the job was aborted or time is up.
  Status pause();

 private:
  Waiter& waiter_;
  double timeout_;
  const std::function<std::string()>& what_;
  int rounds_ = 0;
  Clock::time_point begin_{};
};

}  // namespace hvd
