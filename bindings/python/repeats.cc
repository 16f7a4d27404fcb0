// The Python classes Repeat and Repeats, with which frontends submit operations again that repeat in every step
// (horovod/torch/ops/repeats.py).
//
// A tensor is described by the DLPack C exchange API, which PyTorch 2.10 and later provide and which creates no Python
// objects. Without it, and for subclasses of Tensor, the attributes of the tensor are compared. An array of NumPy is described by its
// buffer.
#include <algorithm>
#include <array>

#include "dlpack.h"
#include "shortcut.h"
#include "work.h"

namespace hvd::python {
namespace {

uintptr_t address(const DlTensor& t) { return reinterpret_cast<uintptr_t>(data_of(t)); }

bool truth(const nb::object& value) {
  const int result = PyObject_IsTrue(value.ptr());
  if (result < 0) throw nb::python_error();
  return result != 0;
}

// Parameters of allreduce_ and allreduce_async_, in the order of all frontends.
enum Parameter { kTensor, kAverage, kName, kOp, kPrescale, kPostscale, kSet, kAllreduceParameters };
using PerParameter = std::array<PyObject*, kAllreduceParameters>;

// Replace the defaults in `values` by the arguments of a call. Return false for invalid arguments.
bool assign(const Arguments& a, const PerParameter& names, PerParameter* values) {
  if (a.count == 0 || a.count > kAllreduceParameters) return false;
  std::copy_n(a.values, a.count, values->begin());
  const Py_ssize_t named = a.names ? PyTuple_Size(a.names) : 0;
  for (Py_ssize_t k = 0; k < named; ++k) {
    const auto name = std::find(names.begin() + static_cast<ptrdiff_t>(a.count), names.end(), PyTuple_GetItem(a.names, k));
    if (name == names.end()) return false;
    (*values)[static_cast<size_t>(name - names.begin())] = a.values[a.count + static_cast<size_t>(k)];
  }
  return true;
}

// Operation that can be submitted again, with the arguments of its first submission.
struct Repeat {
  // Largest number of dimensions for which the shape is stored in `extent`.
  static constexpr int32_t kDimensions = 8;

  nb::object work, engine, name, shape, dtype, op, prescale, postscale, process_set, set_id;
  // Tensors in use while the operation is in flight.
  nb::object source = nb::none(), result = nb::none();
  // True if the operation is stored and not in flight, so that it can be submitted again.
  bool idle = false;
  // True once the operation has been stored under its name.
  bool stored = false;
  // C++ object of the host operation `work`, or null if `work` is a device operation.
  Work* native = nullptr;
  // Shape and element type of the first tensor, or `dimensions` < 0 if it could not be described.
  int32_t dimensions = -1;
  int64_t extent[kDimensions];
  nb::dlpack::dtype element;

  void describe(const DlTensor& t) {
    if (t.ndim > kDimensions) return;
    dimensions = t.ndim;
    element = t.dtype;
    std::copy_n(t.shape, t.ndim, extent);
  }
  bool fits(const DlTensor& t) const {
    return t.ndim == dimensions && t.dtype == element && std::equal(extent, extent + dimensions, t.shape) &&
           t.device.device_type == kDlCpu && (!t.strides || contiguous_values(t) >= 0);
  }
  bool fits_attributes(nb::handle tensor) const {
    return tensor.attr("shape").equal(shape) && tensor.attr("dtype").is(dtype) && truth(tensor.attr("is_contiguous")()) &&
           truth(tensor.attr("is_cpu")) && !truth(tensor.attr("is_neg")());
  }
};

// Describe an array of NumPy that is writable, aligned and in C order, as DLPack would. The format of the buffer stands for the type.
int describe_array(void* array, DlTensor* out) {
  static thread_local int64_t shape[Repeat::kDimensions];
  Py_buffer view;
  if (PyObject_GetBuffer(static_cast<PyObject*>(array), &view, PyBUF_CONTIG | PyBUF_FORMAT) != 0) return -1;
  const nb::dlpack::dtype element{static_cast<uint8_t>(view.format[0]), static_cast<uint8_t>(8 * view.itemsize), 1};
  *out = {view.buf, {kDlCpu, 0}, view.ndim, element, shape, nullptr, 0};
  std::copy_n(view.shape, std::min(view.ndim, Repeat::kDimensions), shape);
  const bool aligned = view.itemsize > 0 && reinterpret_cast<uintptr_t>(view.buf) % static_cast<size_t>(view.itemsize) == 0;
  PyBuffer_Release(&view);
  return aligned ? 0 : -1;
}

class Repeats {
 public:
  Repeats(nb::object frontend, nb::dict idle, nb::dict handles, nb::object numbers, nb::object tensor, nb::object parameter,
          nb::object empty_like, nb::object global_set, size_t limit, nb::object hold, nb::list before_wait, nb::object profiler)
      : frontend_(std::move(frontend)), idle_(std::move(idle)), handles_(std::move(handles)), before_wait_(std::move(before_wait)),
        numbers_(std::move(numbers)), tensor_(std::move(tensor)), parameter_(std::move(parameter)), global_set_(std::move(global_set)),
        is_neg_(nb::getattr(tensor_, "is_neg", nb::none())), empty_like_(std::move(empty_like)), hold_(std::move(hold)),
        profiler_(std::move(profiler)), limit_(limit) {
    if (is_neg_.is_none()) view_ = describe_array;
    nb::object capsule = nb::getattr(tensor_, "__dlpack_c_exchange_api__", nb::none());
    if (capsule.is_none()) return;
    if (const DlpackApi* api = dlpack_api(capsule)) view_ = api->describe;
  }

  nb::object create(nb::object work, nb::object name, nb::object source, nb::object op, nb::object prescale, nb::object postscale,
                    nb::object process_set) const {
    Repeat r;
    const bool on_host = truth(nb::getattr(source, "is_cpu", nb::bool_(true)));
    if (on_host) r.native = nb::cast<Work*>(work);
    // A device operation must never be submitted again, so store an object that differs from every engine.
    r.engine = on_host ? engine() : work;
    r.shape = source.attr("shape");
    r.dtype = source.attr("dtype");
    r.set_id = nb::getattr(process_set, set_id_);
    r.work = std::move(work);
    r.name = std::move(name);
    r.op = std::move(op);
    r.prescale = std::move(prescale);
    r.postscale = std::move(postscale);
    r.process_set = std::move(process_set);
    if (DlTensor view; read(source, &view)) r.describe(view);
    return nb::cast(std::move(r));
  }

  nb::object take(nb::handle name, nb::handle source, nb::handle op, nb::handle prescale, nb::handle postscale, nb::handle process_set) {
    uintptr_t address;
    nb::object taken = match(name, source, op, prescale, postscale, process_set, &address);
    return taken.is_valid() ? taken : nb::none();
  }

  nb::object submit(nb::handle name, nb::handle source, nb::handle target, nb::handle op, nb::handle prescale, nb::handle postscale,
                    nb::handle process_set, bool waits = false) {
    uintptr_t in;
    nb::object taken = match(name, source, op, prescale, postscale, process_set, &in);
    if (!taken.is_valid()) return nb::none();
    Repeat& r = *nb::inst_ptr<Repeat>(taken);
    nb::object result = target.is_none() ? empty_like_(source) : nb::borrow(target);
    const uintptr_t out = result.is(source) ? in : address_of(result);
    waits ? r.native->again<false, true>(in, out) : r.native->again<false>(in, out);
    r.source = nb::borrow(source);
    r.result = std::move(result);
    return taken;
  }

  nb::object run(nb::handle name, nb::handle source, nb::handle target, nb::handle op, nb::handle prescale, nb::handle postscale,
                 nb::handle process_set) {
    if (must_act_at_wait()) return nb::none();
    uintptr_t in;
    nb::object taken = match(name, source, op, prescale, postscale, process_set, &in);
    if (!taken.is_valid()) return nb::none();
    nb::object result = target.is_none() ? empty_like_(source) : nb::borrow(target);
    const uintptr_t out = result.is(source) ? in : address_of(result);
    Work& work = *nb::inst_ptr<Repeat>(taken)->native;
    try {
      work.again<true>(in, out);
    } catch (...) {
      // Keep the tensors alive if Ctrl-C has ended the wait while the engine is still using them.
      if (!work.op->done()) hold_(nb::make_tuple(source, result));
      throw;
    }
    put_back(taken);
    return result;
  }

  nb::object run_first(nb::object function) { return allreduce_first(std::move(function), &Repeats::run); }
  nb::object start_first(nb::object function) { return allreduce_first(std::move(function), &Repeats::start); }
  nb::object finish_first(nb::object function) {
    return shortcut(std::move(function), [this, self = nb::find(*this)](const Arguments& arguments) -> nb::object {
      if (arguments.count != 1 || arguments.names || must_act_at_wait()) return {};
      const nb::handle number = arguments.values[0];
      nb::object record = found(handles_, number);
      if (!record.is_valid() || !record.type().is(repeat_type_)) return {};
      nb::object result = nb::inst_ptr<Repeat>(record)->result;
      if (!settle(record)) return {};
      if (PyDict_DelItem(handles_.ptr(), number.ptr()) != 0) PyErr_Clear();
      return result;
    });
  }

  bool settle(nb::handle repeat) {
    const Work* work = nb::inst_ptr<Repeat>(repeat)->native;
    if (!work || !work->op->done() || !work->op->status().ok()) return false;
    put_back(repeat);
    return true;
  }

  void put_back(nb::handle repeat) {
    Repeat& r = *nb::inst_ptr<Repeat>(repeat);
    r.source = nb::none();
    r.result = nb::none();
    r.idle = true;
    if (r.stored) return;
    r.stored = true;
    if (PyDict_SetItem(idle_.ptr(), r.name.ptr(), repeat.ptr()) != 0) throw nb::python_error();
    // Horovod can have been shut down by another thread, which resets the frontend's engine and clears the dict.
    nb::object dropped;
    if (!r.engine.is(engine())) {
      dropped = r.name;
    } else if (nb::len(idle_) > limit_) {
      PyObject* oldest;
      Py_ssize_t at = 0;
      if (PyDict_Next(idle_.ptr(), &at, &oldest, nullptr)) dropped = nb::borrow(oldest);
    }
    if (dropped.is_valid() && PyDict_DelItem(idle_.ptr(), dropped.ptr()) != 0) PyErr_Clear();
  }

 private:
  nb::object engine() const { return nb::getattr(frontend_, engine_); }

  // Return the value of a key in the dict. Return a null object if the key is missing or not hashable.
  static nb::object found(const nb::dict& dict, nb::handle key) {
    PyObject* value = PyDict_GetItemWithError(dict.ptr(), key.ptr());
    if (!value) PyErr_Clear();
    return nb::borrow(value);
  }

  using Repeating = nb::object (Repeats::*)(nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle);
  nb::object allreduce_first(nb::object function, Repeating repeat) {
    PerParameter names{}, defaults{};
    for (size_t i = 0; i < kAllreduceParameters; ++i) {
      names[i] = nb::object(function.attr("__code__").attr("co_varnames")[i]).release().ptr();
      if (i > 0) defaults[i] = nb::object(function.attr("__defaults__")[i - 1]).release().ptr();
    }
    return shortcut(std::move(function), [=, this, self = nb::find(*this)](const Arguments& arguments) -> nb::object {
      PerParameter v = defaults;
      if (!assign(arguments, names, &v) || v[kAverage] != Py_None) return {};
      nb::object result = (this->*repeat)(v[kName], v[kTensor], v[kTensor], v[kOp], v[kPrescale], v[kPostscale], v[kSet]);
      return result.is_none() ? nb::object() : result;
    });
  }

  nb::object start(nb::handle name, nb::handle source, nb::handle target, nb::handle op, nb::handle prescale, nb::handle postscale,
                   nb::handle process_set) {
    nb::object repeat = profiled() ? nb::none() : submit(name, source, target, op, prescale, postscale, process_set);
    if (repeat.is_none()) return repeat;
    nb::object number = nb::steal(PyIter_Next(numbers_.ptr()));
    if (!number.is_valid() || PyDict_SetItem(handles_.ptr(), number.ptr(), repeat.ptr()) != 0) throw nb::python_error();
    return number;
  }

  // True if Python functions must run before a wait: a profiler records it, or others have asked for it.
  bool must_act_at_wait() const { return nb::len(before_wait_) > 0 || profiled(); }
  bool profiled() const {
    // The dict of the profiler's module takes less time than its attribute.
    if (profiler_dict_) return PyDict_GetItemWithError(profiler_dict_, enabled_.ptr()) == Py_True;
    return !profiler_.is_none() && nb::getattr(profiler_, enabled_).is(Py_True);
  }

  // True for a tensor of the framework itself, whose attributes no subclass can change.
  bool plain(nb::handle tensor) const { return tensor.type().is(tensor_) || tensor.type().is(parameter_); }

  bool read(nb::handle tensor, DlTensor* view) const {
    if (!view_ || !plain(tensor)) return false;
    if (view_(tensor.ptr(), view) == 0) return true;
    PyErr_Clear();
    return false;
  }

  uintptr_t address_of(nb::handle tensor) const {
    DlTensor view;
    return read(tensor, &view) ? hvd::python::address(view) : nb::cast<uintptr_t>(tensor.attr("data_ptr")());
  }

  // Mark the stored operation as in flight and return it. Return a null object if there is none, it is in use, or an argument differs.
  // `address` receives the address of the tensor `source`.
  nb::object match(nb::handle name, nb::handle source, nb::handle op, nb::handle prescale, nb::handle postscale, nb::handle process_set,
                   uintptr_t* address) {
    nb::object taken = found(idle_, name);
    if (!taken.is_valid()) return {};
    Repeat& r = *nb::inst_ptr<Repeat>(taken);
    if (!r.idle) return {};
    try {
      // Arrays of other libraries are first converted to tensors.
      if (!plain(source) && !nb::isinstance(source, tensor_)) return {};
      r.idle = false;
      if (!op.is(r.op) || !process_set.is(r.process_set) || !same(prescale, r.prescale) || !same(postscale, r.postscale) ||
          (!process_set.is(global_set_) && !same(nb::getattr(process_set, set_id_), r.set_id))) {
        return {};
      }
      DlTensor view;
      if (r.dimensions >= 0 && read(source, &view)) {
        *address = hvd::python::address(view);
        if (!r.fits(view)) return {};
        return !is_neg_.is_none() && truth(is_neg_(source)) ? nb::object() : taken;
      }
      if (!r.fits_attributes(source)) return {};
      *address = nb::cast<uintptr_t>(source.attr("data_ptr")());
      return taken;
    } catch (nb::python_error& error) {
      // Ignore the error, because the checks of a first submission report it better.
      if (!error.matches(PyExc_Exception)) throw;
      return {};
    }
  }

  static bool same(nb::handle a, nb::handle b) {
    const int result = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
    if (result < 0) throw nb::python_error();
    return result != 0;
  }

  const nb::object frontend_;
  const nb::dict idle_, handles_;
  const nb::list before_wait_;
  const nb::object numbers_, tensor_, parameter_, global_set_, is_neg_, empty_like_, hold_, profiler_;
  const nb::object repeat_type_ = nb::borrow(nb::type<Repeat>());
  const size_t limit_;
  const nb::object engine_ = nb::steal(PyUnicode_InternFromString("engine"));
  const nb::object enabled_ = nb::steal(PyUnicode_InternFromString("_is_profiler_enabled"));
  const nb::object set_id_ = nb::steal(PyUnicode_InternFromString("process_set_id"));
  PyObject* const profiler_dict_ = PyModule_Check(profiler_.ptr()) ? PyModule_GetDict(profiler_.ptr()) : nullptr;
  int (*view_)(void* tensor, DlTensor* out) = nullptr;
};

}  // namespace

void define_repeats(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Repeat>(m, "Repeat")
      .def_ro("work", &Repeat::work)
      .def_ro("engine", &Repeat::engine)
      .def_rw("source", &Repeat::source, nb::arg().none())
      .def_rw("result", &Repeat::result, nb::arg().none());
  nb::class_<Repeats>(m, "Repeats")
      .def(nb::init<nb::object, nb::dict, nb::dict, nb::object, nb::object, nb::object, nb::object, nb::object, size_t, nb::object,
                    nb::list, nb::object>(),
           "frontend"_a, "idle"_a, "handles"_a, "numbers"_a, "tensor"_a, "parameter"_a, "empty_like"_a, "global_set"_a, "limit"_a, "hold"_a,
           "before_wait"_a, "profiler"_a.none())
      .def("create", &Repeats::create, "work"_a, "name"_a.none(), "source"_a, "op"_a.none(), "prescale"_a, "postscale"_a, "process_set"_a)
      .def("take", &Repeats::take, "name"_a.none(), "source"_a.none(), "op"_a.none(), "prescale"_a.none(), "postscale"_a.none(),
           "process_set"_a.none())
      .def("submit", &Repeats::submit, "name"_a.none(), "source"_a.none(), "target"_a.none(), "op"_a.none(), "prescale"_a.none(),
           "postscale"_a.none(), "process_set"_a.none(), "waits"_a = false)
      .def("run", &Repeats::run, "name"_a.none(), "source"_a.none(), "target"_a.none(), "op"_a.none(), "prescale"_a.none(),
           "postscale"_a.none(), "process_set"_a.none())
      .def("run_first", &Repeats::run_first, "function"_a)
      .def("start_first", &Repeats::start_first, "function"_a)
      .def("finish_first", &Repeats::finish_first, "function"_a)
      .def("settle", &Repeats::settle)
      .def("put_back", &Repeats::put_back);
}

}  // namespace hvd::python
