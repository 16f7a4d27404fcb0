// The Python module horovod._core. Its contract is src/horovod/_core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "agree/request.h"
#include "collectives/reduce.h"
#include "glue.h"
#include "transport/segment.h"

namespace hvd::python {

void raise(const Status& status) {
  if (status.code() == Code::invalid_argument) throw nb::value_error(status.message().c_str());
  const char* name = status.code() == Code::mismatch ? "RanksDisagreeError" : "HorovodInternalError";
  nb::object type = nb::module_::import_("horovod.common.exceptions").attr(name);
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw nb::python_error();
}

}  // namespace hvd::python

NB_MODULE(_core, m) {
  nanobind::set_leak_warnings(false);
  using namespace hvd;
  // Disable nanobind's leak warnings. A program can still hold tensors at exit, and nanobind would report the engine's memory behind them
  // as leaked.
  python::nb::set_leak_warnings(false);
  m.attr("KIND_ALLREDUCE") = static_cast<int>(Kind::allreduce);
  m.attr("KIND_ALLGATHER") = static_cast<int>(Kind::allgather);
  m.attr("KIND_BROADCAST") = static_cast<int>(Kind::broadcast);
  m.attr("KIND_ALLTOALL") = static_cast<int>(Kind::alltoall);
  m.attr("KIND_REDUCESCATTER") = static_cast<int>(Kind::reducescatter);
  m.attr("KIND_BARRIER") = static_cast<int>(Kind::barrier);
  m.attr("WIRE_NONE") = static_cast<int>(WireFormat::none);
  m.attr("WIRE_FP16") = static_cast<int>(WireFormat::fp16);
  m.attr("WIRE_BF16") = static_cast<int>(WireFormat::bf16);
  m.attr("WIRE_INT8") = static_cast<int>(WireFormat::int8);
  m.attr("DEVICE_HOST") = static_cast<int>(DeviceKind::host);
  m.attr("DEVICE_CUDA") = static_cast<int>(DeviceKind::cuda);
  python::define_buffer(m);
  python::define_crypto(m);
  python::define_config(m);
  python::define_engine(m);
  python::define_gradients(m);
  python::define_mpi(m);
  python::define_plan(m);
  python::define_repeats(m);
  m.def("segment_bytes", [](int local_size, size_t staging_bytes, size_t ring_bytes, size_t arena_bytes) {
    return Segment::bytes_needed({local_size, ring_bytes, staging_bytes, arena_bytes});
  }, python::nb::arg("local_size"), python::nb::arg("staging_bytes"), python::nb::arg("ring_bytes"), python::nb::arg("arena_bytes") = 0);
  m.def("isa", [] { return isa(); });
}
