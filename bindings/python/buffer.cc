// Buffer: engine memory (an output, or a block of the arena) that Python accesses through the buffer protocol. Frameworks can thus use it
// without a copy.
#include "buffer.h"

#include <memory>

#include "glue.h"

namespace hvd::python {
namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto& buffer = *nb::inst_ptr<Buffer>(self);
  return PyBuffer_FillInfo(view, self, buffer.data, static_cast<Py_ssize_t>(buffer.bytes), 0, flags);
}

// Return the address of an object's contiguous memory.
uintptr_t address_of(nb::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

}  // namespace

void define_buffer(nb::module_& m) {
  m.def("address_of", &address_of, nb::arg("buffer"));
  nb::class_<Buffer>(m, "Buffer", nb::type_slots(slots)).def_prop_ro("nbytes", [](const Buffer& b) {
    return b.bytes;
  }).def_prop_ro("address", [](const Buffer& b) { return reinterpret_cast<uintptr_t>(b.data); });
}

}  // namespace hvd::python
