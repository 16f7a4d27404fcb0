// The part of CUDA's driver interface that the simulator implements: names, numbers and layouts; also for its
// tests.
#pragma once

#include <cstddef>
#include <cstdint>

using CUdeviceptr = uint64_t;
using CUdevice = int;
using CUcontext = void*;
using CUstream = void*;
using CUevent = void*;
using CUmodule = void*;
using CUfunction = void*;
using CUgraph = void*;

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};

enum CudaError : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kJitCompilerNotFound = 221,
  kUnsupportedPtxVersion = 222,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr unsigned kWaitGeq = 0, kWaitEq = 1;
constexpr int kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2;

extern "C" {
#define SIMCUDA_API __attribute__((visibility("default")))
SIMCUDA_API int cuInit(unsigned flags);
SIMCUDA_API int cuDriverGetVersion(int* version);
SIMCUDA_API int cuGetErrorName(int error, const char** name);
SIMCUDA_API int cuGetErrorString(int error, const char** text);
SIMCUDA_API int cuDeviceGet(CUdevice* device, int ordinal);
SIMCUDA_API int cuDeviceGetCount(int* count);
SIMCUDA_API int cuDeviceGetName(char* name, int size, CUdevice device);
SIMCUDA_API int cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
SIMCUDA_API int cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);

SIMCUDA_API int cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
SIMCUDA_API int cuDevicePrimaryCtxRelease_v2(CUdevice device);
SIMCUDA_API int cuCtxPushCurrent_v2(CUcontext context);
SIMCUDA_API int cuCtxPopCurrent_v2(CUcontext* context);
SIMCUDA_API int cuCtxGetCurrent(CUcontext* context);
SIMCUDA_API int cuCtxGetStreamPriorityRange(int* least, int* greatest);

SIMCUDA_API int cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority);
SIMCUDA_API int cuStreamDestroy_v2(CUstream stream);
SIMCUDA_API int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
SIMCUDA_API int cuStreamIsCapturing(CUstream stream, int* status);
SIMCUDA_API int cuStreamBeginCapture_v2(CUstream stream, int mode);
SIMCUDA_API int cuStreamEndCapture(CUstream stream, CUgraph* graph);
SIMCUDA_API int cuThreadExchangeStreamCaptureMode(int* mode);
SIMCUDA_API int cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags);
SIMCUDA_API int cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags);

SIMCUDA_API int cuEventCreate(CUevent* event, unsigned flags);
SIMCUDA_API int cuEventDestroy_v2(CUevent event);
SIMCUDA_API int cuEventRecord(CUevent event, CUstream stream);
SIMCUDA_API int cuEventQuery(CUevent event);
SIMCUDA_API int cuEventSynchronize(CUevent event);

SIMCUDA_API int cuMemAlloc_v2(CUdeviceptr* address, size_t bytes);
SIMCUDA_API int cuMemFree_v2(CUdeviceptr address);
SIMCUDA_API int cuMemGetInfo_v2(size_t* available, size_t* total);
SIMCUDA_API int cuMemAllocHost_v2(void** memory, size_t bytes);
SIMCUDA_API int cuMemFreeHost(void* memory);
SIMCUDA_API int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags);
SIMCUDA_API int cuMemHostUnregister(void* memory);
SIMCUDA_API int cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned flags);

SIMCUDA_API int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream);
SIMCUDA_API int cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream);
SIMCUDA_API int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
SIMCUDA_API int cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
SIMCUDA_API int cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream);

SIMCUDA_API int cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options, void** values);
SIMCUDA_API int cuModuleUnload(CUmodule module);
SIMCUDA_API int cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
SIMCUDA_API int cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra);

SIMCUDA_API int cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address);
SIMCUDA_API int cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags);
SIMCUDA_API int cuIpcCloseMemHandle(CUdeviceptr address);
#undef SIMCUDA_API
}
