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
  std::shared_ptr<FlightRecorder> recorder;  // Null if the flight recorder is disabled.
  std::shared_ptr<Dumper> dumper;            // Null if the flight recorder is disabled.
  std::unique_ptr<SignalWatch> signal_watch;  // Null if no signal is watched.
  std::string report_dir;
  std::string tuning;  // size thresholds at the start, as text
  std::shared_ptr<StepMeter> steps;
  std::shared_ptr<Timeline> timeline;  // Null if no timeline is running.
  std::weak_ptr<Mailbox> mailbox;      // The mailbox created last. It is weak, like the answerer below.
  std::weak_ptr<Answerer> answerer;
  int rank, size, log_level;
  bool beside_rank0;  // true if this host is also rank 0's host, so that both use the same clock

  explicit PyEngine(const Config& config);
  ~PyEngine();
  // Leak everything in a forked child. The threads do not exist there, so destructors must not run.
  void abandon();
  // Return the engine. Raises in a forked child.
  Engine& live();
};

// Convert a Python timeout in seconds. A negative one means no timeout.
inline double seconds_or_forever(double timeout) {
  constexpr double kForever = 1e8;
  return timeout >= 0 && timeout < kForever ? timeout : kForever;
}

// Define the methods that concern the engine's observers.
void define_trace(nb::module_& m, nb::class_<PyEngine>& engine);

}  // namespace hvd::python
