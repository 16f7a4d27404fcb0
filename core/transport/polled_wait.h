// PolledWait: as Wait (waiter.h), for a condition that nobody rings for and that may come true only because it is looked at, as the end of
// an operation of MPI's. It looks often, and from some moment on rests for a part of the time that the wait
// has taken so far: what that adds is small beside it, and what is looked at needs a look now and then to get on.
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

  // Look again; an error: the job has been aborted, or time is up.
  Status pause();

 private:
  Waiter& waiter_;
  double timeout_;
  const std::function<std::string()>& what_;
  int rounds_ = 0;
  Clock::time_point begin_{};
};

}  // namespace hvd
