// Records PyTorch's gradients when backward produces them, and copies them to a bucket, without Python code.
#include <algorithm>
#include <cstdint>
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

// Base class of a bucket: its gradients that have arrived.
struct Arrivals {
  nb::list arrived, versions;
  nb::object streams = nb::none();
  int64_t waiting_for = 0;
};

// State of a reducer's current backward pass.
struct HookState {
  // Id of the thread in which hooks record gradients, or 0 if there is none.
  uint64_t thread = 0;
  int64_t number = 0;
  nb::object on_gradient = nb::none(), on_bucket = nb::none();
};

// Base class of a parameter's state, which is also the hook that autograd calls.
struct GradientHook {
  nb::object state = nb::none(), bucket = nb::none();
  int64_t last_pass = 0, place = 0;
  bool deferred = true, copy_on_arrival = false;
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

// Record a gradient that has arrived in its bucket. Return None, or null with a Python exception.
PyObject* record(GradientHook& hook, const HookState& state, PyObject* parameter) {
  static const Names names;
  nb::object grad = attribute(parameter, names.grad);
  // A user-registered hook may have set the gradient to None.
  if (!grad.is_valid() || grad.is_none()) return grad.release().ptr();
  nb::object version = attribute(grad.ptr(), names.version);
  if (!version.is_valid()) return nullptr;
  auto& bucket = *nb::inst_ptr<Arrivals>(hook.bucket);
  hook.last_pass = state.number;
  PyList_SetItem(bucket.arrived.ptr(), hook.place, grad.release().ptr());
  PyList_SetItem(bucket.versions.ptr(), hook.place, version.release().ptr());
  if (!bucket.streams.is_none() && !nb::steal(PyObject_CallMethod(bucket.streams.ptr(), "note", nullptr)).is_valid()) return nullptr;
  if (--bucket.waiting_for) Py_RETURN_NONE;
  return PyObject_CallFunctionObjArgs(state.on_bucket.ptr(), hook.bucket.ptr(), nullptr);
}

PyObject* on_gradient(PyObject* self, PyObject* args, PyObject*) {
  auto& hook = *nb::inst_ptr<GradientHook>(self);
  const auto& state = *nb::inst_ptr<HookState>(hook.state);
  const bool records = state.thread == PyThread_get_thread_ident() && hook.last_pass != state.number && !hook.deferred &&
                       !hook.copy_on_arrival && !hook.bucket.is_none();
  return records ? record(hook, state, PyTuple_GetItem(args, 0)) : PyObject_CallFunctionObjArgs(state.on_gradient.ptr(), self, nullptr);
}

int visit_hook(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<GradientHook>(self)->bucket.ptr());
  return 0;
}

int clear_hook(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<GradientHook>(self)->bucket = nb::none();
  return 0;
}

PyType_Slot hook_slots[] = {{Py_tp_call, reinterpret_cast<void*>(on_gradient)},
                            {Py_tp_traverse, reinterpret_cast<void*>(visit_hook)},
                            {Py_tp_clear, reinterpret_cast<void*>(clear_hook)},
                            {0, nullptr}};

}  // namespace

void define_gradients(nb::module_& m) {
  nb::class_<Arrivals>(m, "Arrivals")
      .def(nb::init<>())
      .def_rw("arrived", &Arrivals::arrived)
      .def_rw("versions", &Arrivals::versions)
      .def_rw("streams", &Arrivals::streams, nb::arg().none())
      .def_rw("waiting_for", &Arrivals::waiting_for);
  nb::class_<HookState>(m, "HookState")
      .def(nb::init<>())
      .def_rw("thread", &HookState::thread)
      .def_rw("number", &HookState::number)
      .def_rw("on_gradient", &HookState::on_gradient)
      .def_rw("on_bucket", &HookState::on_bucket);
  nb::class_<GradientHook>(m, "GradientHook", nb::type_slots(hook_slots))
      .def(nb::init<>())
      .def_rw("state", &GradientHook::state)
      .def_rw("bucket", &GradientHook::bucket, nb::arg().none())
      .def_rw("last_pass", &GradientHook::last_pass)
      .def_rw("place", &GradientHook::place)
      .def_rw("deferred", &GradientHook::deferred)
      .def_rw("copy_on_arrival", &GradientHook::copy_on_arrival)
      .def("record", [](GradientHook& h, nb::handle parameter) {
    if (!nb::steal(record(h, *nb::inst_ptr<HookState>(h.state), parameter.ptr())).is_valid()) throw nb::python_error();
  });
  m.def("take_gradients", &take_gradients, nb::arg("exchange"), nb::arg("parameters"), nb::arg("arrived"), nb::arg("versions"),
        nb::arg("views"), nb::arg("addresses"));
}

}  // namespace hvd::python
