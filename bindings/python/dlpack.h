// DLPack's table of C functions, which describe a tensor without creating Python objects. PyTorch has it since version
// 2.10, as torch.Tensor.__dlpack_c_exchange_api__.
#pragma once
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

#include "glue.h"

namespace hvd::python {

using DlTensor = nb::dlpack::dltensor;

inline constexpr int32_t kDlCpu = 1;

// DLPackExchangeAPI, version 1, from DLPack's header dlpack.h.
struct DlpackApi {
  uint32_t major, minor;
  DlpackApi* previous;
  void *allocate, *from_object, *to_object;
  // Describe a tensor. Return 0, or -1 with a Python exception. The description holds no reference to the tensor, and is
  // valid as long as the tensor does not change.
  int (*describe)(void* tensor, DlTensor* out);
  void* stream;
};

// Return version 1 of the function table in a Python capsule, or null if the capsule has none with describe().
inline const DlpackApi* dlpack_api(nb::handle capsule) {
  auto* api = static_cast<DlpackApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  while (api && api->major > 1) api = api->previous;
  return api && api->major == 1 && api->describe ? api : nullptr;
}

inline std::byte* data_of(const DlTensor& t) { return static_cast<std::byte*>(t.data) + t.byte_offset; }

// Return the number of values of a contiguous tensor, or -1 for other tensors.
inline int64_t contiguous_values(const DlTensor& t) {
  int64_t values = 1;
  bool dense = true;
  for (int32_t i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return 0;
    dense = dense && (t.shape[i] == 1 || t.strides[i] == values);
    values *= t.shape[i];
  }
  return dense ? values : -1;
}

}  // namespace hvd::python
