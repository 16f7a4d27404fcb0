// Declarations, written by hand, of the used parts of MXNet 1.9's C API. They include three functions of its C++ library for arrays in
// oneDNN's layout. All functions are looked up in the MXNet that this process has loaded.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hvd::mxnet {

// Handle to an MXNet array (NDArrayHandle).
using Handle = void*;

// Callback that notifies MXNet's engine that an operation has finished. The engine's object is on the caller's stack,
// so copy it and call the copy later. `error` is a dmlc::Error*, used as a plain std::runtime_error. The engine throws
// a copy of it in the next call that waits for an array that the operation should have written.
struct OnComplete {
  void (*function)(void* engine, void* parameter, const std::runtime_error* error) = nullptr;
  void* engine = nullptr;
  void* parameter = nullptr;
  void operator()(const std::runtime_error* error) const { function(engine, parameter, error); }
};

// Device of an array (MXNet's Context).
struct Device {
  int32_t kind = 1;
  int32_t number = 0;
};

// Queue of the worker threads that execute operations by priority (FnProperty::kCPUPrioritized).
constexpr int kPrioritized = 3;

using Run = void (*)(void* run_context, void* on_complete, void* parameter);
using Delete = void (*)(void* parameter);

// List of MXNet's functions, each as X(name without the prefix MX, arguments). All of them return 0, or -1 on an error
// that last_error() describes.
#define HVD_MXNET_FUNCTIONS(X)                                                                                                      \
  X(EnginePushAsyncND, (Run, void* parameter, Delete, Device*, Handle* read, int reads, Handle* written, int writes, int* property, \
                        int priority, const char* name, bool wait))                                                                 \
  X(NDArrayDetach, (Handle, Handle * out))                                                                                          \
  X(NDArrayFree, (Handle))                                                                                                          \
  X(NDArrayGetData, (Handle, void** out))                                                                                           \
  X(NDArrayGetShapeEx, (Handle, int* dimensions, const int** shape))

struct CApi {
#define HVD_MXNET_DECLARE(name, arguments) int(*name) arguments = nullptr;
  HVD_MXNET_FUNCTIONS(HVD_MXNET_DECLARE)
#undef HVD_MXNET_DECLARE
  const char* (*GetLastError)() = nullptr;
  // Functions for arrays in oneDNN's layouts; null in builds of MXNet without oneDNN. reorder_later() asks MXNet's engine to convert an
  // array to the default layout. is_reordered() and reorder() check and convert an array's memory (its chunk) immediately.
  void (*reorder_later)(Handle) = nullptr;
  bool (*is_reordered)(const void* chunk) = nullptr;
  void (*reorder)(void* chunk) = nullptr;
};

// Return the functions of the loaded MXNet. They are null until find_c_api() has succeeded.
const CApi& mx();
// Look up the functions in `library`, a handle from dlopen. Return "" on success, or the name of the first function
// that is missing.
std::string find_c_api(void* library);

inline std::string last_error() { return mx().GetLastError(); }

// Return the chunk of an MXNet array: its memory, with the variable by which MXNet's engine orders operations on it. An NDArray begins with
// a shared pointer to its chunk. Views of an array share the chunk.
inline void* chunk_of(Handle array) { return *static_cast<void**>(array); }

// Additional reference to an MXNet array. It is needed because Python can release its own reference before the
// operation runs.
class Array {
 public:
  Array() = default;
  ~Array() {
    if (it_) mx().NDArrayFree(it_);
  }
  Array(Array&& other) noexcept : it_(other.it_) { other.it_ = nullptr; }
  Array(const Array&) = delete;
  bool refer(Handle to) { return mx().NDArrayDetach(to, &it_) == 0; }
  Handle handle() const { return it_; }
  explicit operator bool() const { return it_ != nullptr; }

 private:
  Handle it_ = nullptr;
};

}  // namespace hvd::mxnet
