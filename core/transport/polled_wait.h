// Variant of Wait (waiter.h) for a condition that triggers no wakeup and needs polling to progress, such as the completion of an MPI
// operation. It polls often at first. Later it pauses for a fraction of the time waited so far, which adds little latency.
//
// Example:
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
  // `what` completes the sentence "no progress for 30 s while waiting for ...". `what` and `waiter` must outlive this
  // object.
  PolledWait(Waiter& waiter, double timeout_seconds, const std::function<std::string()>& what)
      : waiter_(waiter), timeout_(timeout_seconds), what_(what) {}
  PolledWait(const PolledWait&) = delete;

  // Wait until it is time to check the condition again. Return an error if the job was aborted or the timeout has
  // passed.
  Status pause();

 private:
  Waiter& waiter_;
  double timeout_;
  const std::function<std::string()>& what_;
  int rounds_ = 0;
  Clock::time_point begin_{};
};

}  // namespace hvd
