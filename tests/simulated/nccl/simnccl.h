// What the simulated NCCL exports besides NCCL's functions, for tests. Knobs are read from the environment at the first use and changed
// with simnccl_set("name", "value"), which starts the counting of `fail` and `hang` anew; null: the default.
//
//   SIMNCCL_LIBRARY is none of them: SIMCUDA_LIBRARY names the simulated driver where the process has not loaded one.
//   SIMNCCL_VERSION      what ncclGetVersion says, also to peers; what it changes: groups of aborts and lazy connections (22200)
//   SIMNCCL_FAIL         NAME:K[@RANK][=RESULT]: the K-th call of ncclNAME fails, with RESULT (3). async:K[@RANK]: the K-th kernel hangs
//                        and ncclCommGetAsyncError says RESULT (6) from then on
//   SIMNCCL_HANG         K[@RANK]: the K-th kernel never ends, until it is aborted
//   SIMNCCL_LAZY         0: everything is connected at creation (else at the first use of a collective or peer, which blocks the host)
//   SIMNCCL_CREATION_MS  how long the creation of a communicator takes at least (0)
//   SIMNCCL_DELAY_US     most that creation and helper threads wait at random (2000)
//   SIMNCCL_ABORT_WAITS  1: an abort waits for the aborts of the other ranks of the host
//   SIMNCCL_HOSTID_RANK  1: as if NCCL_HOSTID were each rank's number, for ranks that are threads
//   NCCL_COMM_BLOCKING, NCCL_HOSTID  as in NCCL; as knobs: blocking, hostid
#pragma once
#include <cstdint>

extern "C" {
int simnccl_set(const char* name, const char* value);  // -1: there is none of that name
int simnccl_living();                                  // communicators of this process that were neither destroyed nor aborted
int simnccl_kernels();                                 // how many were enqueued by this process
uint64_t simnccl_calls(const char* name);              // how often ncclNAME was called
}
