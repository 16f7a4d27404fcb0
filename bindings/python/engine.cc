// The Python classes Engine and Work.
#include "engine.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "agree/validate.h"
#include "buffer.h"
#include "frontend.h"
#include "glue.h"
#include "work.h"

namespace hvd::python {
namespace {

int64_t integer(nb::handle h) {
  const int64_t v = PyLong_AsLongLong(h.ptr());
  if (v == -1 && PyErr_Occurred()) throw nb::python_error();
  return v;
}

std::vector<int64_t> integers(nb::handle sequence) {
  std::vector<int64_t> out;
  if (sequence.is_none()) return out;
  for (nb::handle item : nb::iter(sequence)) out.push_back(integer(item));
  return out;
}

// Return the string as UTF-8. Strings without a UTF-8 form (lone surrogates) raise UnicodeEncodeError, which is a
// ValueError.
const char* text(const nb::str& s) {
  const char* utf8 = PyUnicode_AsUTF8AndSize(s.ptr(), nullptr);
  if (!utf8) throw nb::python_error();
  return utf8;
}

template <class Enum>
Enum code(const char* argument, int value, Enum last) {
  if (value < 0 || value > static_cast<int>(last)) {
    throw nb::value_error(
        (std::string(argument) + " must be 0 to " + std::to_string(static_cast<int>(last)) + ", got " + std::to_string(value)).c_str());
  }
  return static_cast<Enum>(value);
}

template <bool kBlocking>
Work submit(PyEngine& self, int kind, nb::str name, uintptr_t in, uintptr_t out, nb::handle shape, int dtype, int op, int root,
            double prescale, double postscale, int process_set, nb::handle splits, nb::str group, int group_size, int wire,
            uintptr_t residual, int frontend, int device_kind, int device, uintptr_t stream) {
  Engine& engine = self.live();
  Request q;
  q.kind = code("kind", kind, Kind::barrier);
  q.set = static_cast<uint32_t>(process_set);
  q.frontend = code("frontend", frontend, uint8_t{UINT8_MAX});
  q.name = text(name);
  q.dtype = code("dtype", dtype, DType::bfloat16);
  q.op = code("op", op, kLastReduceOp);
  q.wire = code("wire", wire, WireFormat::int8);
  if (residual && q.wire == WireFormat::none) throw nb::value_error("residual must be 0 without a wire format");
  q.root = root;
  q.prescale = prescale;
  q.postscale = postscale;
  q.shape = integers(shape);
  q.splits = integers(splits);
  if (!splits.is_none() && q.splits.empty()) throw nb::value_error("splits must have one entry for each rank of the process set, got none");
  q.group = text(group);
  q.group_size = static_cast<uint32_t>(group_size);
  const auto* source = reinterpret_cast<const std::byte*>(in);
  auto* target = reinterpret_cast<std::byte*>(out);
  auto* carried = reinterpret_cast<float*>(residual);
  const Place on{code("device_kind", device_kind, DeviceKind::cuda), device, reinterpret_cast<Device::Stream>(stream)};
  const Place* place = on.kind == DeviceKind::host ? nullptr : &on;
  OperationPtr operation;
  check(kBlocking ? engine.submit_blocking(std::move(q), source, target, &operation, carried, place)
                  : engine.submit(std::move(q), source, target, &operation, carried, place));
  Work work(self.engine, std::move(operation), text(name));
  if constexpr (kBlocking) {
    nb::gil_scoped_release nogil;
    engine.wait(*work.op, Deadline::after(kSignalSlice));
  }
  return work;
}

Work submit_special(PyEngine& self, Kind kind, const std::string& name, std::vector<int64_t> numbers, int frontend) {
  Request q;
  q.kind = kind;
  q.frontend = code("frontend", frontend, uint8_t{UINT8_MAX});
  q.name = name;
  q.splits = std::move(numbers);
  OperationPtr op;
  check(self.live().submit(std::move(q), nullptr, nullptr, &op));
  return Work(self.engine, std::move(op), name);
}

nb::dict stats(PyEngine& self) {
  Engine& engine = self.live();
  Engine::Stats s;
  {
    // Release the GIL, because shutdown() on another thread can hold the engine's lock until a log message is written.
    nb::gil_scoped_release nogil;
    s = engine.stats();
  }
  nb::dict d;
  for_each(s, [&d](const char* name, uint64_t value) { d[name] = value; });
  d["control_seconds"] = static_cast<double>(s.control_ns) * 1e-9;
  d["unstaged_bytes"] = s.unstaged_bytes;
  d["arena_bytes"] = s.arena_bytes;
  d["scratch_bytes"] = s.scratch_bytes;
  d["wire_bytes"] = s.wire_bytes;
  d["control_messages_sent"] = s.control_sent.messages;
  d["control_bytes_sent"] = s.control_sent.bytes;
  d["control_messages_received"] = s.control_received.messages;
  d["control_bytes_received"] = s.control_received.bytes;
  return d;
}

}  // namespace

PyEngine::PyEngine(const Config& config)
    : engine(std::make_shared<Engine>(make_options(config))), report_dir(config.report_dir), tuning(config.tuning), rank(config.rank),
      size(config.size), log_level(config.log_level),
      beside_rank0(config.node_of.at(0) == config.node_of.at(static_cast<size_t>(config.rank))) {
  steps = std::make_shared<StepMeter>(engine->waits());
  engine->observers().add(steps);
  if (config.recorder_entries == 0) return;
  recorder = std::make_shared<FlightRecorder>(config.recorder_entries);
  engine->observers().add(recorder);
  dumper = std::make_shared<Dumper>(recorder, config.rank, config.size, config.labels.at(static_cast<size_t>(config.rank)), report_dir);
  // Observers are called in the order in which they were added. Add the dumper last, so that the recorder has recorded
  // the end of the job before the dump is written.
  engine->observers().add(dumper);
}

PyEngine::~PyEngine() {
  if (!engine) return;
  nb::gil_scoped_release nogil;
  signal_watch.reset();
  // Close the timeline while the GIL is released, because the timeline's writer thread might need the GIL to log a
  // message.
  timeline.reset();
  engine.reset();
}

void PyEngine::abandon() {
  abandon_current();
  if (!engine) return;
  if (signal_watch) signal_watch.release()->abandon_in_child();
  engine->abandon_in_child();
  new std::shared_ptr<Engine>(std::move(engine));
}

Engine& PyEngine::live() {
  if (!engine) raise(Status(Code::shutdown, "the engine belongs to the parent process; a forked child cannot use it"));
  return *engine;
}

void define_engine(nb::module_& m) {
  nb::class_<Work>(m, "Work")
      .def_prop_ro("name", [](const Work& w) { return w.name; })
      .def("done", [](Work& w) { return w.engine->poll(*w.op) && w.reached(); })
      .def("in_use", &Work::in_use)
      .def("order", &Work::order, nb::arg("stream"))
      .def("copy_output", &Work::copy_output, nb::arg("to_ptr"), nb::arg("stream"))
      .def("wait", &Work::wait, nb::arg("timeout") = -1.0)
      .def("submit_again", &Work::again<false>, nb::arg("in_ptr"), nb::arg("out_ptr"))
      .def("run_again", &Work::again<true>, nb::arg("in_ptr"), nb::arg("out_ptr"))
      .def_prop_ro("sizes", [](const Work& w) {
    return w.op->done() ? w.op->sizes : std::vector<int64_t>();
  }).def_prop_ro("output", [](const Work& w) -> nb::object {
    if (!w.op->done() || !w.op->output) return nb::none();
    return nb::cast(Buffer(w.op->output));
  });
  using namespace nb::literals;
  nb::class_<PyEngine> engine(m, "Engine");
  engine.def(nb::init<const Config&>(), "config"_a)
      .def("submit", &submit<false>, "kind"_a, "name"_a, "in_ptr"_a, "out_ptr"_a, "shape"_a, "dtype"_a, "op"_a, "root"_a, "prescale"_a,
           "postscale"_a, "process_set"_a, "splits"_a.none(), "group"_a, "group_size"_a, "wire"_a = 0, "residual"_a = 0, "frontend"_a = 0,
           "device_kind"_a = 0, "device"_a = 0, "stream"_a = 0)
      .def("run", &submit<true>, "kind"_a, "name"_a, "in_ptr"_a, "out_ptr"_a, "shape"_a, "dtype"_a, "op"_a, "root"_a, "prescale"_a,
           "postscale"_a, "process_set"_a, "splits"_a.none(), "group"_a, "group_size"_a, "wire"_a = 0, "residual"_a = 0, "frontend"_a = 0,
           "device_kind"_a = 0, "device"_a = 0, "stream"_a = 0)
      .def("join", [](PyEngine& self, int frontend) { return submit_special(self, Kind::join, "join.noname", {}, frontend); },
           "frontend"_a = 0)
      .def("add_process_set",
           [](PyEngine& self, std::vector<int64_t> ranks, const std::string& name) {
    return submit_special(self, Kind::add_set, name, std::move(ranks), 0);
  }, "ranks"_a, "name"_a = "")
      .def("remove_process_set", [](PyEngine& self, int id) { return submit_special(self, Kind::remove_set, "", {id}, 0); },
           "process_set"_a)
      .def("allocate",
           [](PyEngine& self, size_t nbytes) -> nb::object {
    const auto block = self.live().allocate(nbytes);
    return block ? nb::cast(Buffer(block)) : nb::none();
  }, "nbytes"_a)
      .def("process_sets", [](PyEngine& self) { return self.live().process_sets(); })
      .def("name_group",
           [](PyEngine& self, int kind, uint32_t set, int frontend) {
    return self.live().name_group(set, code("frontend", frontend, uint8_t{UINT8_MAX}), code("kind", kind, Kind::join));
  }, "kind"_a, "process_set"_a, "frontend"_a = 0)
      .def("ended",
           [](PyEngine& self) -> nb::object {
    const Status why = self.live().ended();
    if (why.ok() || (why.code() == Code::shutdown && why.rank() < 0)) return nb::none();
    const char* how = why.rank() < 0 ? "failed" : why.code() == Code::shutdown ? "left" : "lost";
    return nb::make_tuple(how, why.rank());
  })
      .def("shutdown",
           [](PyEngine& self, const std::string& reason) {
    if (!self.engine) return;
    nb::gil_scoped_release nogil;
    self.signal_watch.reset();
    self.engine->shutdown(reason);
  }, "reason"_a = "")
      .def("failures", [](PyEngine& self) { return self.live().failures()->load(); })
      .def("give_up",
           [](PyEngine& self, const std::string& why, int rank) {
    if (self.engine) self.engine->give_up(Status(Code::peer_lost, why, rank >= 0 && rank < self.size ? rank : -1));
  }, "why"_a, "rank"_a = -1)
      .def("retune",
           [](PyEngine& self, size_t fusion_threshold, const std::string& text) {
    if (self.rank != 0) {
      throw nb::value_error(("retune() must be called on rank 0, but this is rank " + std::to_string(self.rank)).c_str());
    }
    Tuning tuning;
    check(Tuning::parse(text, &tuning));
    Engine& engine = self.live();
    nb::gil_scoped_release nogil;
    engine.retune(fusion_threshold, tuning);
  }, "fusion_threshold"_a, "tuning"_a)
      .def_ro("tuning", &PyEngine::tuning)
      .def("abandon", &PyEngine::abandon)
      .def("serve_frontends",
           [](PyEngine& self, int rank, int size, int local_rank, int local_size) {
    self.live();
    nb::gil_scoped_release nogil;
    set_current(self.engine, rank, size, local_rank, local_size);
  }, "rank"_a, "size"_a, "local_rank"_a, "local_size"_a)
      .def("stats", &stats);
  define_trace(m, engine);
  m.def("frontend_api", &frontend_api);
  m.def("serve_frontend", [](int frontend, bool in) { serve_frontend(code("frontend", frontend, uint8_t{UINT8_MAX}), in); }, "frontend"_a,
        "in_job"_a);
  m.def("serve_no_frontends", [] {
    nb::gil_scoped_release nogil;
    set_current(nullptr, 0, 1, 0, 1);
  });
}

}  // namespace hvd::python
