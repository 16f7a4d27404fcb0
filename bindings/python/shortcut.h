// Callable that tries a native function before a Python function, whose frame costs as much as a small operation.
#pragma once
#include <structmember.h>

#include <cstddef>
#include <functional>

#include "glue.h"

namespace hvd::python {

// Arguments of a call in Python's vectorcall protocol: `count` positional ones, then those named in the tuple `names`, or null.
struct Arguments {
  PyObject* const* values;
  size_t count;
  PyObject* names;
};
using Attempt = std::function<nb::object(const Arguments&)>;

// Instances belong to modules and are never destroyed.
struct Shortcut {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject *dict, *references, *function;
  Attempt* attempt;

  static PyObject* call(PyObject* self, PyObject* const* values, size_t flagged, PyObject* names) {
    const Shortcut& s = *reinterpret_cast<Shortcut*>(self);
    try {
      nb::object result = (*s.attempt)({values, static_cast<size_t>(PyVectorcall_NARGS(flagged)), names});
      return result.is_valid() ? result.release().ptr() : PyObject_Vectorcall(s.function, values, flagged, names);
    } catch (nb::python_error& error) {
      error.restore();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
    return nullptr;
  }
  // Pickle the name, as for a Python function.
  static PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }
  // As an attribute of a class, become a method, as a Python function does.
  static PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
    if (!object) return nb::borrow(self).release().ptr();
    return nb::module_::import_("types").attr("MethodType")(nb::handle(self), nb::handle(object)).release().ptr();
  }
  static PyObject* type() {
    static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Shortcut, vectorcall), READONLY, nullptr},
                                    {"__dictoffset__", T_PYSSIZET, offsetof(Shortcut, dict), READONLY, nullptr},
                                    {"__weaklistoffset__", T_PYSSIZET, offsetof(Shortcut, references), READONLY, nullptr},
                                    {}};
    static PyGetSetDef attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr}, {}};
    static PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {}};
    static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
                                  {Py_tp_members, members},
                                  {Py_tp_getset, attributes},
                                  {Py_tp_methods, methods},
                                  {0, nullptr}};
    static PyType_Spec spec{"horovod._core.Shortcut", sizeof(Shortcut), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
    return PyType_FromSpec(&spec);
  }
};

// Return an object that behaves like `function`, but calls `attempt` first. If that returns a null object, `function` is called with the
// same arguments.
inline nb::object shortcut(nb::object function, Attempt attempt) {
  static const nb::handle type = Shortcut::type();
  nb::object result = type();
  auto& s = *reinterpret_cast<Shortcut*>(result.ptr());
  s.vectorcall = Shortcut::call;
  s.attempt = new Attempt(std::move(attempt));
  const nb::module_ functools = nb::module_::import_("functools");
  // The last three make inspect.getfullargspec() work.
  functools.attr("update_wrapper")(result, function,
                                   functools.attr("WRAPPER_ASSIGNMENTS") + nb::make_tuple("__code__", "__defaults__", "__kwdefaults__"));
  s.function = function.release().ptr();
  return result;
}

}  // namespace hvd::python
