// Python class Engine. Several files define its methods.
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
  // Flight recorder, or null if it is disabled.
  std::shared_ptr<FlightRecorder> recorder;
  // Writer of the recorder's dumps, or null if the recorder is disabled.
  std::shared_ptr<Dumper> dumper;
  // Signal watcher, or null if no signal is watched.
  std::unique_ptr<SignalWatch> signal_watch;
  std::string report_dir;
  // Text form of the engine's size thresholds for algorithms, as set when the engine was created.
  std::string tuning;
  std::shared_ptr<StepMeter> steps;
  // Running timeline, or null if there is none.
  std::shared_ptr<Timeline> timeline;
  // Mailbox and answerer that were created last. Their users own them.
  std::weak_ptr<Mailbox> mailbox;
  std::weak_ptr<Answerer> answerer;
  int rank, size, log_level;
  // True if this host is also rank 0's host, so that both ranks use the same clock.
  bool beside_rank0;

  explicit PyEngine(const Config& config);
  ~PyEngine();
  // In a forked child, leak everything. The threads do not exist there, so destructors must not run.
  void abandon();
  // Return the engine. Raises an error in a forked child.
  Engine& live();
};

// Convert a Python timeout in seconds. A negative timeout means no limit.
inline double seconds_or_forever(double timeout) {
  constexpr double kForever = 1e8;
  return timeout >= 0 && timeout < kForever ? timeout : kForever;
}

// Define the Python methods for the engine's observers.
void define_trace(nb::module_& m, nb::class_<PyEngine>& engine);

}  // namespace hvd::python
