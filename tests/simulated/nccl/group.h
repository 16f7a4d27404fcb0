// What a thread has called between ncclGroupStart and ncclGroupEnd.
#pragma once
#include "communicator.h"
#include "kernel.h"

namespace simnccl {

bool in_group();
ncclResult_t add_to_group(const Creation& creation);
ncclResult_t add_abort_to_group(ncclComm_t comm);

// A call: launched now, or with its group. The arguments were checked.
ncclResult_t submit(const Task& task);
// A call that failed: its group fails too.
ncclResult_t fail_group(ncclResult_t result);

}  // namespace simnccl
