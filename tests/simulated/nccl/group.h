// A thread's calls between ncclGroupStart and ncclGroupEnd.
#pragma once
#include "communicator.h"
#include "kernel.h"

namespace simnccl {

bool in_group();
ncclResult_t add_to_group(const Creation& creation);
ncclResult_t add_abort_to_group(ncclComm_t comm);

// Launches a call now, or with its group. Its arguments have been checked.
ncclResult_t submit(const Task& task);
// Records a failed call: its group fails too.
ncclResult_t fail_group(ncclResult_t result);

}  // namespace simnccl
