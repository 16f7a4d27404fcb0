// Python class Work: an operation of the engine. Waiting releases the GIL and handles signals (Ctrl-C).
#pragma once
#include <memory>
#include <string>

#include "engine.h"

namespace hvd::python {

// Seconds between checks for Ctrl-C.
inline constexpr double kSignalSlice = 0.2;

struct Work {
  std::shared_ptr<Engine> engine;
  OperationPtr op;
  // Name as submitted. The engine's copy of the request can get a different name during negotiation.
  std::string name;

  Work(std::shared_ptr<Engine> e, OperationPtr o, std::string n) : engine(std::move(e)), op(std::move(o)), name(std::move(n)) {}
  Work(Work&&) = default;
  ~Work() {
    // Release the GIL, because dropping the last reference shuts down the engine, and the engine's thread might need
    // the GIL to log a message.
    if (engine.use_count() != 1) return;
    nb::gil_scoped_release nogil;
    engine.reset();
  }

  bool wait(double timeout) {
    // Keep a reference, because another thread can submit the work again while this thread does not hold the GIL.
    const OperationPtr own = op;
    if (!own->done() && !wait_for(own, timeout)) return false;
    check(own->status());
    return true;
  }
  bool wait_for(const OperationPtr& own, double timeout) {
    const Deadline deadline = Deadline::after(seconds_or_forever(timeout));
    for (;;) {
      bool done;
      {
        nb::gil_scoped_release nogil;
        const Deadline slice = Deadline::after(kSignalSlice);
        done = engine->wait(*own, slice.when() < deadline.when() ? slice : deadline);
      }
      if (done) return true;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (deadline.passed()) return false;
    }
  }

  // True if the device has also finished the operation's work.
  bool reached() const {
    if (!op->on_device || !op->on_device->completion) return true;
    bool there = false;
    check(op->on_device->completion->reached(&there));
    return there;
  }
  bool in_use() const {
    if (!op->on_device || !op->on_device->completion) return false;
    bool passed = false;
    return !op->on_device->completion->passed(&passed).ok() || !passed;
  }
  void order(uintptr_t stream) const {
    if (op->done() && op->on_device && op->on_device->completion) {
      check(op->on_device->completion->order(reinterpret_cast<Device::Stream>(stream)));
    }
  }
  void copy_output(uintptr_t to, uintptr_t stream) const {
    if (!op->done() || !op->on_device || !op->output)
      throw nb::value_error("copy_output needs a completed operation with an output on a device");
    check(engine->copy_output(*op, reinterpret_cast<void*>(to), reinterpret_cast<Device::Stream>(stream)));
  }

  // With kWaits, the engine's thread is not woken, because the caller waits next and runs the progress loop itself.
  template <bool kBlocking, bool kWaits = kBlocking>
  void again(uintptr_t in, uintptr_t out) {
    check(engine->submit_again(&op, reinterpret_cast<const std::byte*>(in), reinterpret_cast<std::byte*>(out), kWaits));
    if constexpr (kBlocking) {
      const OperationPtr own = op;
      {
        nb::gil_scoped_release nogil;
        engine->drive(*own);
      }
      if (!own->done()) wait_for(own, -1.0);
      check(own->status());
    }
  }
};

}  // namespace hvd::python
