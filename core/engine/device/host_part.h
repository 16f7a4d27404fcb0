// The parts of operations on a device that are done on host memory: each is agreed on and carried out as an operation of its own.
#pragma once
#include <string>
#include <vector>

#include "engine/observers.h"
#include "engine/operation.h"
#include "engine/submissions.h"

namespace hvd {

// A number for the parts that carry out these: Operation::carries, and OnDevice::carried.
uint64_t new_carrier(const std::vector<OperationPtr>& operations);

// Of that request, whose fence is that of the program's operation, under that name. `in` and `out` are the caller's to fill in;
// Submissions::expect() is to be told of it.
OperationPtr host_part(Request request, std::string name, uint64_t carrier);

// When its data is there. What is refused is done at once, with the error.
void submit_host_part(const OperationPtr& part, Submissions* submissions, const Observers& observers);

// How long to sleep at most before the next look at copies, the first of which began then.
double resting_seconds_after(Clock::time_point begun);

}  // namespace hvd
