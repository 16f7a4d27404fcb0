// Copies PyTorch's gradients on the CPU to a bucket, in one call without Python code.
#include <algorithm>
#include <cstring>
#include <vector>

#include "dlpack.h"

namespace hvd::python {
namespace {

// Names of tensor attributes. They are never released.
struct Names {
  PyObject* grad = PyUnicode_InternFromString("grad");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* version = PyUnicode_InternFromString("_version");
};

struct Copy {
  PyObject *parameter, *view;
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};

PyObject* item(const nb::list& list, size_t i) { return PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i)); }
nb::object attribute(PyObject* of, PyObject* name) { return nb::steal(PyObject_GetAttr(of, name)); }

// Return the tensor's number of values, or -1 if they are not adjacent or not on the CPU.
int64_t values_of(const DlTensor& t) { return t.device.device_type == kDlCpu ? contiguous_values(t) : -1; }

bool alike(const DlTensor& a, const DlTensor& b) {
  return a.dtype == b.dtype && a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

// True if the tensor's memory holds its values. False for a lazily negated view, whose memory holds the negated values, or if a Python
// exception is set.
bool holds_values(PyObject* tensor) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  return nb::steal(PyObject_VectorcallMethod(is_neg, &tensor, 1, nullptr)).ptr() == Py_False;
}

// Add the copy of one gradient to its view in the bucket to `copies`, unless the gradient already is that view. Return false, possibly with
// a Python exception, if Python code must handle this gradient.
bool prepare(const DlpackApi& api, PyObject* parameter, PyObject* arrived, PyObject* version, PyObject* view, PyObject* address,
             std::vector<Copy>* copies) {
  static const Names names;
  if (!attribute(parameter, names.grad).is(arrived) || Py_TYPE(arrived) != Py_TYPE(view)) return false;
  const nb::object now = attribute(arrived, names.version);
  if (!now.is_valid() || PyLong_AsLongLong(now.ptr()) != PyLong_AsLongLong(version)) return false;
  DlTensor to, from;
  if (api.describe(view, &to) != 0 || values_of(to) < 0 || data_of(to) != PyLong_AsVoidPtr(address)) return false;
  if (arrived == view) return true;
  if (api.describe(arrived, &from) != 0 || !alike(from, to)) return false;
  const int64_t values = values_of(from);
  if (values < 0 || (values > 0 && !data_of(from))) return false;  // PyTorch's zero tensors have no memory.
  if (attribute(arrived, names.requires_grad).ptr() != Py_False) return false;
  copies->push_back({parameter, view, data_of(to), data_of(from), static_cast<size_t>(values) * (to.dtype.bits / 8)});
  return true;
}

bool take_gradients(nb::handle exchange, nb::list parameters, nb::list arrived, nb::list versions, nb::list views, nb::list addresses) {
  const DlpackApi* api = dlpack_api(exchange);
  if (!api) return false;
  const size_t count = nb::len(parameters);
  for (const auto& each : {arrived, versions, views, addresses}) {
    if (nb::len(each) != count) throw nb::value_error("each list must have one entry per parameter");
  }
  std::vector<Copy> copies;
  copies.reserve(count);
  bool ready = true;
  // Check for lazily negated views first: is_neg() releases the GIL, and no tensor may change between prepare() and the copy.
  for (size_t i = 0; ready && i < count; ++i) ready = holds_values(nb::borrow(item(arrived, i)).ptr());
  for (size_t i = 0; ready && i < count; ++i) {
    ready = prepare(*api, item(parameters, i), item(arrived, i), item(versions, i), item(views, i), item(addresses, i), &copies);
  }
  if (!ready) {
    PyErr_Clear();
    return false;
  }
  static PyObject* const grad = PyUnicode_InternFromString("grad");
  for (const Copy& copy : copies) {
    std::memmove(copy.to, copy.from, copy.bytes);
    if (PyObject_SetAttr(copy.parameter, grad, copy.view) != 0) {
      PyErr_Clear();  // The general Python code gets the same error and reports it.
      return false;
    }
  }
  return true;
}

}  // namespace

void define_gradients(nb::module_& m) {
  m.def("take_gradients", &take_gradients, nb::arg("exchange"), nb::arg("parameters"), nb::arg("arrived"), nb::arg("versions"),
        nb::arg("views"), nb::arg("addresses"));
}

}  // namespace hvd::python
