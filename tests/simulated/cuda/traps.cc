// Functions that the real libcuda exports too and that nobody here may call: under their plain names the forms of CUDA 1 and 2, with other
// types of arguments; variants with another default stream; and what our rules forbid. Each ends the test.
#include "driver.h"

#define TRAP(name, why)                                              \
  extern "C" __attribute__((visibility("default"))) int name(void) { \
    simcuda::violation(#name " was called: " why);                   \
    return kInvalidValue;                                            \
  }
#define OLD(name) TRAP(name, "that is an old form, take the one with a suffix")
#define OTHER_DEFAULT_STREAM(name) TRAP(name, "that is the form for another default stream")

OLD(cuMemAlloc)
OLD(cuMemFree)
OLD(cuMemGetInfo)
OLD(cuMemGetAddressRange)
OLD(cuMemAllocHost)
OLD(cuMemHostRegister)
OLD(cuMemHostGetDevicePointer)
OLD(cuMemcpyHtoDAsync)
OLD(cuMemcpyDtoHAsync)
OLD(cuMemcpyDtoDAsync)
OLD(cuDeviceTotalMem)
OLD(cuDeviceGetUuid)
OLD(cuDevicePrimaryCtxRelease)
OLD(cuCtxPushCurrent)
OLD(cuCtxPopCurrent)
OLD(cuStreamDestroy)
OLD(cuEventDestroy)
OLD(cuIpcOpenMemHandle)
OLD(cuStreamWaitValue32)
OLD(cuStreamWaitValue64)
OLD(cuStreamWriteValue32)
OLD(cuStreamWriteValue64)
OLD(cuStreamBeginCapture)

OTHER_DEFAULT_STREAM(cuStreamWaitEvent_ptsz)
OTHER_DEFAULT_STREAM(cuStreamQuery_ptsz)
OTHER_DEFAULT_STREAM(cuStreamIsCapturing_ptsz)
OTHER_DEFAULT_STREAM(cuStreamGetCtx_ptsz)
OTHER_DEFAULT_STREAM(cuStreamBeginCapture_v2_ptsz)
OTHER_DEFAULT_STREAM(cuStreamWaitValue32_v2_ptsz)
OTHER_DEFAULT_STREAM(cuStreamWaitValue64_v2_ptsz)
OTHER_DEFAULT_STREAM(cuStreamWriteValue32_v2_ptsz)
OTHER_DEFAULT_STREAM(cuStreamWriteValue64_v2_ptsz)
OTHER_DEFAULT_STREAM(cuEventRecord_ptsz)
OTHER_DEFAULT_STREAM(cuMemcpyAsync_ptsz)
OTHER_DEFAULT_STREAM(cuMemcpyHtoDAsync_v2_ptsz)
OTHER_DEFAULT_STREAM(cuMemcpyDtoHAsync_v2_ptsz)
OTHER_DEFAULT_STREAM(cuMemcpyDtoDAsync_v2_ptsz)
OTHER_DEFAULT_STREAM(cuMemsetD8Async_ptsz)
OTHER_DEFAULT_STREAM(cuLaunchKernel_ptsz)

TRAP(cuCtxCreate, "only primary contexts")
TRAP(cuCtxCreate_v2, "only primary contexts")
TRAP(cuCtxCreate_v3, "only primary contexts")
TRAP(cuCtxCreate_v4, "only primary contexts")
TRAP(cuDevicePrimaryCtxReset, "the context is everybody's")
TRAP(cuDevicePrimaryCtxReset_v2, "the context is everybody's")
TRAP(cuDevicePrimaryCtxSetFlags, "the context is everybody's")
TRAP(cuDevicePrimaryCtxSetFlags_v2, "the context is everybody's")
TRAP(cuLaunchHostFunc, "host functions are not called when the context has failed")
TRAP(cuStreamAddCallback, "host functions are not called when the context has failed")
TRAP(cuGetProcAddress, "it has four arguments, its _v2 five")
TRAP(cuGetProcAddress_v2, "names with their suffix come from dlsym")

// Virtual memory management is not simulated; the attributes say so.
#define UNSUPPORTED(name) \
  extern "C" __attribute__((visibility("default"))) int name(void) { return kNotSupported; }
UNSUPPORTED(cuMemCreate)
UNSUPPORTED(cuMemRelease)
UNSUPPORTED(cuMemAddressReserve)
UNSUPPORTED(cuMemAddressFree)
UNSUPPORTED(cuMemMap)
UNSUPPORTED(cuMemUnmap)
UNSUPPORTED(cuMemSetAccess)
UNSUPPORTED(cuMemExportToShareableHandle)
UNSUPPORTED(cuMemImportFromShareableHandle)
UNSUPPORTED(cuMemGetAllocationGranularity)
UNSUPPORTED(cuMemRetainAllocationHandle)
