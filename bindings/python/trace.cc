// Python interface to the observers of an engine: messages from other ranks, and reports of waiting operations.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <unistd.h>

#include "engine.h"
#include "trace/answer.h"
#include "trace/dump.h"
#include "trace/end_signal.h"
#include "trace/mailbox.h"
#include "trace/nvtx.h"
#include "trace/process_state.h"
#include "trace/recorder.h"
#include "trace/steps.h"
#include "trace/timeline.h"

namespace hvd::python {
namespace {

nb::object taken(Mailbox& self, double timeout) {
  Mailbox::Letter letter;
  bool came;
  {
    nb::gil_scoped_release nogil;
    came = self.take(&letter, Deadline::after(seconds_or_forever(timeout)));
  }
  if (!came) return nb::none();
  return nb::make_tuple(letter.from, letter.topic, nb::bytes(letter.body.data(), letter.body.size()));
}

[[noreturn]] void raise_os_error(const Status& status) {
  PyErr_SetString(PyExc_OSError, status.message().c_str());
  throw nb::python_error();
}

// Write to stderr directly, because Python might be hung.
void tell(int rank, const std::string& text) {
  const std::string line = "[horovod, rank " + std::to_string(rank) + "] WARNING: " + text + "\n";
  [[maybe_unused]] const ssize_t n = ::write(2, line.data(), line.size());
}

std::string stacks_file(int rank) { return "stacks.rank" + std::to_string(rank) + ".txt"; }

std::shared_ptr<Answerer> make_answerer(PyEngine& self, int rank, std::shared_ptr<Mailbox> box, int signal, int stacks_fd) {
  Answerer::Means means;
  means.rank = rank;
  means.recorder = self.recorder;
  means.steps = self.steps;
  if (signal > 0) means.stacks = std::make_shared<PythonStacks>(signal, stacks_fd);
  const std::weak_ptr<Engine> engine = self.engine;
  if (rank == 0) {
    means.reply = [box](std::string body) { box->put(Topic::answer, std::move(body)); };
    means.alone = [folder = self.report_dir](const std::string& stacks) {
      std::string path;
      if (!folder.empty() && write_into(folder, FolderKind::own, stacks_file(0), stacks, &path).ok()) tell(0, "see " + path);
      tell(0,
           "operations wait, and rank 0 cannot explain why: its Python code does not run, so something holds the interpreter lock, or "
           "it is very busy. Its stacks:\n" +
               stacks);
    };
  } else {
    means.reply = [engine](std::string body) {
      if (const auto live = engine.lock()) live->post_message({0, static_cast<uint32_t>(Topic::answer), std::move(body)});
    };
  }
  means.ask_python = [box](uint64_t number) { box->put(Topic::stacks, std::to_string(number)); };
  auto answerer = std::make_shared<Answerer>(std::move(means));
  self.live().observers().add(answerer);
  self.answerer = answerer;
  return answerer;
}

bool watch_signal(PyEngine& self, int signal, std::shared_ptr<Answerer> answerer) {
  self.live();
  if (!self.dumper || self.dumper->folder().empty()) return false;
  self.signal_watch = SignalWatch::start(signal, [dumper = self.dumper, answerer = std::weak_ptr<Answerer>(answerer)] {
    std::string path;
    const Status written = dumper->dump("", "a signal asked for it", &path);
    if (const auto live = answerer.lock()) {
      if (const std::string stacks = live->stacks(); !stacks.empty()) {
        [[maybe_unused]] const Status s = write_into(dumper->folder(), FolderKind::own, stacks_file(dumper->rank()), stacks);
      }
    }
    tell(dumper->rank(), written.ok() ? "the last operations of this rank are in " + path + ", its stacks beside them" : written.message());
  });
  return self.signal_watch != nullptr;
}

std::string dump(PyEngine& self, const std::string& directory, const std::string& why) {
  self.live();
  if (!self.dumper) throw nb::value_error("the flight recorder is off (HOROVOD_RECORDER_ENTRIES is 0)");
  std::string path;
  Status status;
  {
    nb::gil_scoped_release nogil;
    status = self.dumper->dump(directory, why, &path);
  }
  if (!status.ok()) raise_os_error(status);
  return path;
}

std::string write_report(PyEngine& self, const std::string& name, const nb::bytes& text) {
  Status status;
  std::string path;
  const std::string_view view(text.c_str(), text.size());
  {
    nb::gil_scoped_release nogil;
    status = write_into(self.report_dir, FolderKind::own, name, view, &path);
  }
  if (!status.ok()) raise_os_error(status);
  return path;
}

nb::list take_steps(PyEngine& self) {
  nb::list out;
  const std::vector<StepMeter::Step> steps = self.steps->take();
  if (steps.empty()) return out;
  const TickScale::Line line = self.steps->line();
  const auto ns = [&line](uint64_t span) { return static_cast<int64_t>(line.seconds(span) * 1e9); };
  for (const StepMeter::Step& s : steps) {
    out.append(nb::make_tuple(s.number, line.ns(s.end), ns(s.time), s.data, ns(s.blocked), ns(s.collectives), ns(s.hidden), s.bytes,
                              s.moved, s.operations, s.tensors, s.arrival ? line.ns(s.arrival) : 0, s.unattended));
  }
  return out;
}

void listen(PyEngine& self, const std::string& part, bool on) {
  std::vector<std::shared_ptr<Observer>> observers;
  if (part == "recorder") {
    observers = {self.recorder, self.dumper};
  } else if (part == "steps") {
    observers = {self.steps};
  } else if (part == "hangs") {
    observers = {self.answerer.lock()};
  } else if (part == "mailbox") {
    observers = {self.mailbox.lock()};
  } else {
    throw nb::value_error(("part must be recorder, steps, hangs or mailbox, got '" + part + "'").c_str());
  }
  for (const auto& observer : observers) {
    if (!observer) continue;
    // Remove the observer first, so that each observer is registered at most once.
    self.live().observers().remove(observer.get());
    if (on) self.live().observers().add(observer);
  }
}

// Return a function that sends a message to the observers of a rank. Only observers call it. The engine outlives these
// calls, because observers receive no events after its destruction.
std::function<void(ObserverMessage)> speaker(PyEngine& self) {
  return [engine = &self.live()](ObserverMessage note) { (void)engine->post_message(std::move(note)); };
}

std::shared_ptr<Timeline> start_timeline(PyEngine& self, const std::string& path, const std::string& host, bool mark_cycles, double keep,
                                         int64_t first_step, int64_t end_step) {
  TimelineOptions options;
  options.path = path;
  options.rank = self.rank;
  options.size = self.size;
  options.host = host;
  options.mark_cycles = mark_cycles;
  options.keep = keep;
  options.first_step = first_step;
  options.end_step = end_step;
  options.clock_of_rank0 = self.beside_rank0;
  options.say = speaker(self);
  options.log = log_from(self.log_level);
  std::shared_ptr<Timeline> made;
  int error = 0;
  Status status;
  {
    nb::gil_scoped_release nogil;
    status = Timeline::start(std::move(options), &made, &error);
  }
  if (!status.ok()) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(error, status.message()).ptr());
    throw nb::python_error();
  }
  self.timeline = made;
  self.steps->listen([timeline = std::weak_ptr<Timeline>(made)](uint64_t number) {
    if (const auto live = timeline.lock()) live->step(static_cast<int64_t>(number));
  });
  self.live().observers().add(made);
  return made;
}

void stop_timeline(PyEngine& self, const std::shared_ptr<Timeline>& timeline) {
  if (self.engine) {
    self.engine->observers().remove(timeline.get());
    // Tell the timeline that the job has ended. It might not know, because callers can see the end before observers do.
    if (const Status end = self.engine->ended(); !end.ok()) timeline->ended(end);
  }
  if (self.timeline == timeline) {
    self.timeline.reset();
    self.steps->listen(nullptr);
  }
  nb::gil_scoped_release nogil;
  timeline->close();
}

}  // namespace

void define_trace(nb::module_& m, nb::class_<PyEngine>& engine) {
  using namespace nb::literals;
  m.attr("TOPIC_WAITING") = static_cast<uint32_t>(Topic::waiting);
  m.attr("TOPIC_PYTHON") = static_cast<uint32_t>(Topic::python);
  m.attr("TOPIC_EXPLAIN") = static_cast<uint32_t>(Topic::explain);
  m.attr("TOPIC_ANSWER") = static_cast<uint32_t>(Topic::answer);
  m.attr("TOPIC_STACKS") = static_cast<uint32_t>(Topic::stacks);
  m.attr("TOPIC_UNNOTICED") = static_cast<uint32_t>(Topic::unnoticed);
  m.def("process_state", [](int pid) {
    nb::gil_scoped_release nogil;
    return process_state(pid);
  }, "pid"_a);
  nb::class_<Answerer>(m, "Answerer")
      .def("begun", &Answerer::begun, "number"_a)
      .def("give",
           [](Answerer& self, uint64_t number, const std::string& stacks, const std::string& json) { self.give(number, stacks, json); },
           "number"_a, "stacks"_a, "json"_a)
      .def("noticed", &Answerer::noticed)
      .def("close", &Answerer::close, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<EndSignal>(m, "EndSignal").def("fileno", &EndSignal::fd).def("failures", &EndSignal::failures);
  nb::class_<Mailbox>(m, "Mailbox")
      .def("take", &taken, "timeout"_a = -1.0)
      .def("put", [](Mailbox& self, const nb::bytes& body) { self.put(Topic::python, std::string(body.c_str(), body.size())); }, "body"_a)
      .def("close", &Mailbox::close)
      .def_prop_ro("closed", &Mailbox::closed);
  nb::class_<Timeline>(m, "Timeline").def_prop_ro("lost", &Timeline::lost).def_prop_ro("error", [](const Timeline& self) {
    return self.status().message();
  });
  engine
      .def("start_timeline", &start_timeline, "path"_a, "host"_a = "", "mark_cycles"_a = false, "keep"_a = 0.0, "first_step"_a = -1,
           "end_step"_a = -1)
      .def("stop_timeline", &stop_timeline, "timeline"_a)
      .def("mark_ranges",
           [](PyEngine& self, const std::string& library) {
    std::shared_ptr<NvtxRanges> ranges;
    if (const Status s = NvtxRanges::open(library, &ranges); !s.ok()) raise_os_error(s);
    self.live().observers().add(std::move(ranges));
  }, "library"_a)
      .def("mailbox",
           [](PyEngine& self, int rank) {
    auto box = std::make_shared<Mailbox>(rank, rank == 0 ? speaker(self) : nullptr);
    self.live().observers().add(box);
    self.mailbox = box;
    return box;
  }, "rank"_a)
      .def("leave_note",
           [](PyEngine& self, int to, uint32_t topic, const nb::bytes& body) {
    return self.live().post_message({to, topic, std::string(body.c_str(), body.size())});
  }, "to"_a, "topic"_a, "body"_a)
      .def("ask_who_waits", [](PyEngine& self) { self.live().ask_who_waits(); })
      .def("end_signal",
           [](PyEngine& self) {
    auto signal = std::make_shared<EndSignal>(self.live().failures());
    if (signal->fd() < 0) raise_os_error(Status(Code::internal, "an eventfd for the end of the job cannot be created"));
    self.live().observers().add(signal);
    // If the job has already ended, trigger the signal now, because observers that are added later receive no event for
    // it.
    if (!self.live().ended().ok()) signal->give();
    return signal;
  })
      .def("answerer", &make_answerer, "rank"_a, "mailbox"_a, "signal"_a, "stacks_fd"_a)
      .def("watch_signal", &watch_signal, "signal"_a, "answerer"_a)
      .def("listen", &listen, "part"_a, "on"_a)
      .def("dump", &dump, "directory"_a = "", "why"_a = "the program asked for it")
      .def_ro("report_dir", &PyEngine::report_dir)
      .def("write_report", &write_report, "name"_a, "text"_a)
      .def("set_report", [](PyEngine& self, const std::string& where) { self.live().set_report(where); }, "where"_a)
      .def("step", [](PyEngine& self, uint64_t data_ns) { self.steps->step(data_ns); }, "data_ns"_a = 0)
      .def("find_steps", [](PyEngine& self) { self.steps->find(); })
      .def("take_steps", &take_steps)
      .def("steps_made", [](PyEngine& self) {
    return self.steps->made();
  }).def("wake_for_steps", [](PyEngine& self, std::shared_ptr<Mailbox> box, const nb::bytes& body) {
    self.steps->wake(std::move(box), std::string(body.c_str(), body.size()));
  }, "mailbox"_a, "body"_a);
}

}  // namespace hvd::python
