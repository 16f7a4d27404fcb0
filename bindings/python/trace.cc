// What an engine's observers tell Python: the last operations, notes from other ranks, who waits for whom.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "base/dtype.h"
#include "engine.h"
#include "trace/mailbox.h"
#include "trace/recorder.h"

namespace hvd::python {
namespace {

constexpr double kForever = 1e8;

nb::object taken(Mailbox& self, double timeout) {
  Mailbox::Letter letter;
  bool came;
  {
    nb::gil_scoped_release nogil;
    came = self.take(&letter, Deadline::after(timeout >= 0 && timeout < kForever ? timeout : kForever));
  }
  if (!came) return nb::none();
  return nb::make_tuple(letter.from, letter.topic, nb::bytes(letter.body.data(), letter.body.size()));
}

nb::list recent(PyEngine& self, size_t most) {
  nb::list out;
  if (!self.recorder) return out;
  const std::vector<FlightRecorder::Entry> entries = self.recorder->last(most);
  const TickScale::Line line = self.recorder->line();
  for (const FlightRecorder::Entry& e : entries) {
    nb::dict d;
    d["number"] = e.number;
    d["what"] = name_of(e.what);
    d["begin"] = line.ns(e.begin);
    d["end"] = line.ns(e.end);
    const std::string name = e.text();
    d["name"] = nb::steal<nb::str>(PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace"));
    d["kind"] = name_of(e.kind);
    d["dtype"] = name_of(e.dtype);
    d["op"] = name_of(e.op);
    d["set"] = e.set;
    d["face"] = static_cast<int>(e.face);
    nb::list shape;
    for (size_t i = 0; i < std::min<size_t>(e.dimensions, e.kShape); ++i) shape.append(e.shape[i]);
    d["shape"] = shape;
    d["dimensions"] = static_cast<int>(e.dimensions);
    d["count"] = e.count;
    d["bytes"] = e.bytes;
    d["schedule"] = e.schedule;
    d["guarded"] = e.guarded;
    out.append(d);
  }
  return out;
}

}  // namespace

void define_trace(nb::module_& m, nb::class_<PyEngine>& engine) {
  using namespace nb::literals;
  m.attr("TOPIC_WAITING") = static_cast<uint32_t>(Topic::waiting);
  m.attr("TOPIC_PYTHON") = static_cast<uint32_t>(Topic::python);
  nb::class_<Mailbox>(m, "Mailbox")
      .def("take", &taken, "timeout"_a = -1.0)
      .def("put", [](Mailbox& self, const nb::bytes& body) { self.put(Topic::python, std::string(body.c_str(), body.size())); }, "body"_a)
      .def("close", &Mailbox::close)
      .def_prop_ro("closed", &Mailbox::closed);
  engine
      .def("mailbox",
           [](PyEngine& self, int rank) {
    auto box = std::make_shared<Mailbox>(rank);
    self.live().observers().add(box);
    return box;
  }, "rank"_a)
      .def("leave_note",
           [](PyEngine& self, int to, uint32_t topic, const nb::bytes& body) {
    return self.live().leave_note({to, topic, std::string(body.c_str(), body.size())});
  }, "to"_a, "topic"_a, "body"_a)
      .def("ask_who_waits", [](PyEngine& self) { self.live().ask_who_waits(); })
      .def("recent", &recent, "most"_a = 1000)
      .def("collective_sums", [](PyEngine& self) {
    if (!self.recorder) return nb::make_tuple(0.0, 0, 0);
    const FlightRecorder::Sums sums = self.recorder->sums();
    return nb::make_tuple(self.recorder->line().seconds(sums.ticks), sums.bytes, sums.tensors);
  });
}

}  // namespace hvd::python
