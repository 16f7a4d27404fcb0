// Query functions.
#include "communicator.h"
#include "knobs.h"

using namespace simnccl;

ncclResult_t ncclGetVersion(int* out) {
  if (const ncclResult_t r = count_call("GetVersion", -1); r != ncclSuccess) return r;
  if (!out) return ncclInvalidArgument;
  *out = version();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

#if SIMNCCL_BUILT_AS >= 21300
const char* ncclGetLastError(ncclComm_t) { return last_error(); }
#endif

#if SIMNCCL_BUILT_AS >= 21900
ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t, void** handle) {
  if (const ncclResult_t r = usable(comm, "ncclCommRegister"); r != ncclSuccess) return r;
  *handle = buffer;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) { return usable(comm, "ncclCommDeregister"); }
#endif
