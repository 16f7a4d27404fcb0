// Functions of the CUDA driver, loaded at run time. One build therefore runs on machines with and without a GPU, and no
// CUDA header is needed. Names, argument types and numbers are those of NVIDIA's driver API, versions 12.1 to 13.5.
// Many names need a suffix such as _v2, because libcuda still exports older functions under the plain names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace hvd {

struct CudaDriver {
  using Device = int;
  using Pointer = uint64_t;
  using Context = void*;
  using Stream = void*;
  using Event = void*;
  using Module = void*;
  using Function = void*;
  struct IpcHandle {
    char bytes[64];
  };

// Table of the driver's functions: X(member, symbol, arguments). Every function returns an error code; 0 means success.
#define HVD_CUDA_FUNCTIONS(X)                                                                                                            \
  X(init, "cuInit", (unsigned flags))                                                                                                    \
  X(version, "cuDriverGetVersion", (int* version))                                                                                       \
  X(device_get, "cuDeviceGet", (Device*, int ordinal))                                                                                   \
  X(device_count, "cuDeviceGetCount", (int* count))                                                                                      \
  X(device_name, "cuDeviceGetName", (char* name, int length, Device))                                                                    \
  X(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, Device))                                                       \
  X(device_uuid, "cuDeviceGetUuid_v2", (void* uuid, Device))                                                                             \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (Context*, Device))                                                                      \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (Device))                                                                           \
  X(context_push, "cuCtxPushCurrent_v2", (Context))                                                                                      \
  X(context_pop, "cuCtxPopCurrent_v2", (Context*))                                                                                       \
  X(priority_range, "cuCtxGetStreamPriorityRange", (int* least, int* greatest))                                                          \
  X(stream_create, "cuStreamCreateWithPriority", (Stream*, unsigned flags, int priority))                                                \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream))                                                                                      \
  X(stream_wait, "cuStreamWaitEvent", (Stream, Event, unsigned flags))                                                                   \
  X(stream_is_capturing, "cuStreamIsCapturing", (Stream, int* status))                                                                   \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                                                             \
  X(event_create, "cuEventCreate", (Event*, unsigned flags))                                                                             \
  X(event_destroy, "cuEventDestroy_v2", (Event))                                                                                         \
  X(event_record, "cuEventRecord", (Event, Stream))                                                                                      \
  X(event_query, "cuEventQuery", (Event))                                                                                                \
  X(copy, "cuMemcpyAsync", (Pointer to, Pointer from, size_t bytes, Stream))                                                             \
  X(zero, "cuMemsetD8Async", (Pointer to, unsigned char value, size_t bytes, Stream))                                                    \
  X(alloc, "cuMemAlloc_v2", (Pointer*, size_t bytes))                                                                                    \
  X(free, "cuMemFree_v2", (Pointer))                                                                                                     \
  X(alloc_host, "cuMemAllocHost_v2", (void** memory, size_t bytes))                                                                      \
  X(free_host, "cuMemFreeHost", (void* memory))                                                                                          \
  X(ipc_share, "cuIpcGetMemHandle", (IpcHandle*, Pointer))                                                                               \
  X(ipc_open, "cuIpcOpenMemHandle_v2", (Pointer*, IpcHandle, unsigned flags))                                                            \
  X(ipc_close, "cuIpcCloseMemHandle", (Pointer))                                                                                         \
  X(register_host, "cuMemHostRegister_v2", (void* memory, size_t bytes, unsigned flags))                                                 \
  X(unregister_host, "cuMemHostUnregister", (void* memory))                                                                              \
  X(address_of_host, "cuMemHostGetDevicePointer_v2", (Pointer*, void* memory, unsigned flags))                                           \
  X(write_word, "cuStreamWriteValue32_v2", (Stream, Pointer, uint32_t value, unsigned flags))                                            \
  X(await_word, "cuStreamWaitValue32_v2", (Stream, Pointer, uint32_t value, unsigned flags))                                             \
  X(module_load, "cuModuleLoadDataEx", (Module*, const void* image, unsigned count, int* options, void** values))                        \
  X(module_unload, "cuModuleUnload", (Module))                                                                                           \
  X(module_function, "cuModuleGetFunction", (Function*, Module, const char* name))                                                       \
  X(launch, "cuLaunchKernel",                                                                                                            \
    (Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, \
     Stream, void** parameters, void** extra))                                                                                           \
  X(error_name, "cuGetErrorName", (int code, const char** name))                                                                         \
  X(error_text, "cuGetErrorString", (int code, const char** text))

#define HVD_CUDA_MEMBER(member, symbol, arguments) int(*member) arguments = nullptr;
  HVD_CUDA_FUNCTIONS(HVD_CUDA_MEMBER)
#undef HVD_CUDA_MEMBER

  static constexpr int kNotReady = 600, kDeinitialized = 4, kLegacyStreamUnusable = 906;

  // Return the error as text, for example "CUDA error 700 (CUDA_ERROR_ILLEGAL_ADDRESS): ...".
  std::string describe(int code) const;
  // Return ok, or Code::internal with the message "`what` failed: ...".
  Status check(int code, const char* what) const;
};

// Load the driver's library and call cuInit, once per process. Later calls ignore `library`. The library is never
// unloaded. An error explains why no GPU is available. Call this function for the first device tensor, not earlier,
// because a process must not fork after cuInit.
Status cuda_driver(const std::string& library, const CudaDriver** out);

}  // namespace hvd
