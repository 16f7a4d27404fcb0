// The Python class Engine, shared by the files that define its methods.
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
  std::shared_ptr<FlightRecorder> recorder;  // null: the flight recorder is disabled.
  std::shared_ptr<Dumper> dumper;            // null: the flight recorder is disabled.
  std::unique_ptr<SignalWatch> signal_watch;  // null: no signal is watched.
  std::string report_dir;
  std::shared_ptr<StepMeter> steps;
  std::shared_ptr<Timeline> timeline;  // null: no timeline is running.
  std::weak_ptr<Mailbox> mailbox;      // The mailbox created last; weak, like the answerer below.
  std::weak_ptr<Answerer> answerer;
  int rank, size, log_level;
  bool beside_rank0;  // this host is rank 0's, so the clock is the same

  explicit PyEngine(const Config& config);
  ~PyEngine();
  // In a forked child the threads do not exist, so destructors must not run; leak everything.
  void abandon();
  // Return the engine; raises in a forked child.
  Engine& live();
};

// Convert a Python timeout to seconds; a negative one means none.
inline double seconds_or_forever(double timeout) {
  constexpr double kForever = 1e8;
  return timeout >= 0 && timeout < kForever ? timeout : kForever;
}

// Define the methods for the engine's observers.
void define_trace(nb::module_& m, nb::class_<PyEngine>& engine);

}  // namespace hvd::python
