// Python's Engine, for the files that define its methods.
#pragma once
#include <memory>

#include "config.h"
#include "engine/engine.h"
#include "glue.h"
#include "trace/answer.h"
#include "trace/dump.h"
#include "trace/recorder.h"
#include "trace/steps.h"
#include "trace/timeline.h"

namespace hvd::python {

struct PyEngine {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<FlightRecorder> recorder;  // null: it is off
  std::shared_ptr<Dumper> dumper;            // likewise
  std::unique_ptr<SignalWatch> signal_watch;  // null: nobody watches
  std::string report_dir;
  std::shared_ptr<StepMeter> steps;
  std::shared_ptr<Timeline> timeline;  // null: none runs
  std::weak_ptr<Mailbox> mailbox;      // the last one made, as the next
  std::weak_ptr<Answerer> answerer;
  int rank, size, log_level;
  bool beside_rank0;  // on its host, with its clock

  explicit PyEngine(const Config& config);
  ~PyEngine();
  // In a forked child the threads do not exist, so nothing may be destroyed: the memory stays behind.
  void abandon();
  // Raises in a forked child.
  Engine& live();
};

// Return a time-out of Python in seconds; a negative one means none.
inline double seconds_or_forever(double timeout) {
  constexpr double kForever = 1e8;
  return timeout >= 0 && timeout < kForever ? timeout : kForever;
}

// What its observers tell.
void define_trace(nb::module_& m, nb::class_<PyEngine>& engine);

}  // namespace hvd::python
