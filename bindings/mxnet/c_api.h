// The part of MXNet 1.9's C API that the operations are made of, declared here and looked up in the MXNet that this process has loaded,
// with three functions of its C++ library that tell of arrays which oneDNN keeps in an order of its own.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hvd::mxnet {

using Handle = void*;  // an array's (NDArrayHandle)

// How an operation tells MXNet's engine of its end. What the engine hands over lives in the caller's frame: it is copied, and called
// later. `error` is a dmlc::Error*, which is a std::runtime_error and nothing else; the engine throws a copy of it at whoever next waits
// for an array that the operation was to write.
struct OnComplete {
  void (*function)(void* engine, void* parameter, const std::runtime_error* error) = nullptr;
  void* engine = nullptr;
  void* parameter = nullptr;
  void operator()(const std::runtime_error* error) const { function(engine, parameter, error); }
};

struct Device {  // MXNet's Context
  int32_t kind = 1;
  int32_t number = 0;
};

// Queue of the workers that mind priorities (FnProperty::kCPUPrioritized).
constexpr int kPrioritized = 3;

using Run = void (*)(void* run_context, void* on_complete, void* parameter);
using Delete = void (*)(void* parameter);

// X(name without MX, arguments); all give 0, or -1 and a reason in last_error().
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
  // Null in builds without oneDNN, where there are no such arrays. The first asks the engine to put an array into the usual order;
  // the others look at the memory of one (its chunk), and change it, at once.
  void (*reorder_later)(Handle) = nullptr;
  bool (*is_reordered)(const void* chunk) = nullptr;
  void (*reorder)(void* chunk) = nullptr;
};

// The functions of the loaded MXNet. Before find_c_api() has succeeded they are null.
const CApi& mx();
// Looks them up in `library`, a handle of dlopen's. Returns "" or the name of the first function that this MXNet lacks.
std::string find_c_api(void* library);

inline std::string last_error() { return mx().GetLastError(); }

// An array's memory, with the variable that orders who uses it: what an NDArray's first member, a shared pointer, points to. Views of one
// array have it in common.
inline void* chunk_of(Handle array) { return *static_cast<void**>(array); }

// One more reference to an array, of our own: what Python holds may go before the operation runs.
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
