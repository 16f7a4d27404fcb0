// HIP's functions as rows of CUDA's table (devices/cuda/driver.h), so that one Device serves AMD's and NVIDIA's GPUs.
// Pure, apart from the functions themselves, which are passed in. Names, argument types and numbers are those of HIP's
// runtime API, versions 6.0 to 7.1.
#pragma once
#include <cstddef>
#include <cstdint>

#include "devices/cuda/driver.h"

namespace hvd {

struct HipFunctions {
  using Stream = void*;
  using Event = void*;

// X(member, symbol, result, arguments). An int result is an error code, 0: success; most are equal to CUDA's.
#define HVD_HIP_FUNCTIONS(X)                                                                         \
  X(init, "hipInit", int, (unsigned flags))                                                          \
  X(version, "hipDriverGetVersion", int, (int* version))                                             \
  X(last_error, "hipGetLastError", int, ())                                                          \
  X(error_name, "hipGetErrorName", const char*, (int code))                                          \
  X(error_text, "hipGetErrorString", const char*, (int code))                                        \
  X(device_get, "hipDeviceGet", int, (int* device, int ordinal))                                     \
  X(device_count, "hipGetDeviceCount", int, (int* count))                                            \
  X(device_name, "hipDeviceGetName", int, (char* name, int length, int device))                      \
  X(device_attribute, "hipDeviceGetAttribute", int, (int* value, int attribute, int device))         \
  X(device_uuid, "hipDeviceGetUuid", int, (void* uuid, int device))                                  \
  X(set_device, "hipSetDevice", int, (int device))                                                   \
  X(get_device, "hipGetDevice", int, (int* device))                                                  \
  X(priority_range, "hipDeviceGetStreamPriorityRange", int, (int* least, int* greatest))             \
  X(stream_create, "hipStreamCreateWithPriority", int, (Stream*, unsigned flags, int priority))      \
  X(stream_destroy, "hipStreamDestroy", int, (Stream))                                               \
  X(stream_wait, "hipStreamWaitEvent", int, (Stream, Event, unsigned flags))                         \
  X(stream_is_capturing, "hipStreamIsCapturing", int, (Stream, int* status))                         \
  X(exchange_capture_mode, "hipThreadExchangeStreamCaptureMode", int, (int* mode))                   \
  X(event_create, "hipEventCreateWithFlags", int, (Event*, unsigned flags))                          \
  X(event_destroy, "hipEventDestroy", int, (Event))                                                  \
  X(event_record, "hipEventRecord", int, (Event, Stream))                                            \
  X(event_query, "hipEventQuery", int, (Event))                                                      \
  X(copy, "hipMemcpyAsync", int, (void* to, const void* from, size_t bytes, int kind, Stream))       \
  X(set, "hipMemsetAsync", int, (void* to, int value, size_t bytes, Stream))                         \
  X(alloc, "hipMalloc", int, (void** memory, size_t bytes))                                          \
  X(free, "hipFree", int, (void* memory))                                                            \
  X(alloc_host, "hipHostMalloc", int, (void** memory, size_t bytes, unsigned flags))                 \
  X(free_host, "hipHostFree", int, (void* memory))                                                   \
  X(ipc_share, "hipIpcGetMemHandle", int, (CudaDriver::IpcHandle*, void* memory))                    \
  X(ipc_open, "hipIpcOpenMemHandle", int, (void** memory, CudaDriver::IpcHandle, unsigned flags))    \
  X(ipc_close, "hipIpcCloseMemHandle", int, (void* memory))                                          \
  X(register_host, "hipHostRegister", int, (void* memory, size_t bytes, unsigned flags))             \
  X(unregister_host, "hipHostUnregister", int, (void* memory))                                       \
  X(address_of_host, "hipHostGetDevicePointer", int, (void** address, void* memory, unsigned flags)) \
  X(write_word, "hipStreamWriteValue32", int, (Stream, void* word, uint32_t value, unsigned flags))  \
  X(await_word, "hipStreamWaitValue32", int, (Stream, void* word, uint32_t value, unsigned flags, uint32_t mask))

#define HVD_HIP_MEMBER(member, symbol, answer, arguments) answer(*member) arguments = nullptr;
  HVD_HIP_FUNCTIONS(HVD_HIP_MEMBER)
#undef HVD_HIP_MEMBER
};

// Build the table over these functions, all of which must be present. They are kept for the process, which has one HIP.
CudaDriver table_over_hip(const HipFunctions& functions);

}  // namespace hvd
