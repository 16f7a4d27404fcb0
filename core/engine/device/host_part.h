// Host operations that execute parts of a device operation; each is negotiated and executed as a separate operation.
#pragma once
#include <string>
#include <vector>

#include "engine/observers.h"
#include "engine/operation.h"
#include "engine/submissions.h"

namespace hvd {

// Return a new number for the parts that execute these operations: Operation::carries, and OnDevice::carried.
uint64_t new_carrier(const std::vector<OperationPtr>& operations);

// Create a part with that request, which keeps the fence of the program's operation, and that name. The caller sets
// `in` and `out`, and calls Submissions::expect().
OperationPtr host_part(Request request, std::string name, uint64_t carrier);

// Submit a part whose data are ready. If refused, it is done at once, with the error.
void submit_host_part(const OperationPtr& part, Submissions* submissions, const Observers& observers);

// Return the maximum seconds to sleep before checking copies again, the first of which started at `begun`.
double resting_seconds_after(Clock::time_point begun);

}  // namespace hvd
