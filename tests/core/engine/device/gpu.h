// A framework's use of a GPU, on the simulated one: memory, a stream, and work on it that takes time.
#pragma once
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collectives/reduce.h"
#include "contains.h"
#include "engine/device/accelerator.h"
#include "engine/engine.h"
#include "engine/harness_engine.h"

namespace hvd::testing {

// Functions of the simulated driver, by name.
template <class Function>
Function simulated(const char* name) {
  static void* const library = [] {
    void* handle = ::dlopen(HVD_SIMULATED_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    require(handle != nullptr, "the simulated driver cannot be loaded");
    return handle;
  }();
  auto* function = reinterpret_cast<Function>(::dlsym(library, name));
  require(function != nullptr, std::string("the simulated driver has no ") + name);
  return function;
}

class Gpu {
 public:
  explicit Gpu(int ordinal) : ordinal_(ordinal) {
    call("cuInit", simulated<int (*)(unsigned)>("cuInit")(0));
    call("cuDevicePrimaryCtxRetain", simulated<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, ordinal));
    const Current current(*this);
    call("cuStreamCreateWithPriority", simulated<int (*)(void**, unsigned, int)>("cuStreamCreateWithPriority")(&stream_, 1, 0));
  }
  ~Gpu() {
    if (lost_) return;
    wait();
    {
      const Current current(*this);
      for (uint64_t memory : memory_) simulated<int (*)(uint64_t)>("cuMemFree_v2")(memory);
      simulated<int (*)(void*)>("cuStreamDestroy_v2")(stream_);
    }
    simulated<int (*)(int)>("cuDevicePrimaryCtxRelease_v2")(ordinal_);
  }
  Gpu(const Gpu&) = delete;

  // The device has failed: nothing needs to be released.
  void lose() { lost_ = true; }

  Place place() const { return {DeviceKind::cuda, ordinal_, stream_}; }
  Device::Stream stream() const { return stream_; }

  std::byte* allocate(size_t bytes) {
    const Current current(*this);
    uint64_t memory = 0;
    call("cuMemAlloc", simulated<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2")(&memory, std::max<size_t>(bytes, 1)));
    memory_.push_back(memory);
    return reinterpret_cast<std::byte*>(memory);
  }

  // Writes in stream order.
  void write(std::byte* to, std::vector<std::byte> values) {
    later([to, values = std::move(values)] {
      if (!values.empty()) std::memcpy(at(to, values.size()), values.data(), values.size());
    });
  }
  // Waits for the stream; returns the memory's contents after all work on it.
  std::vector<std::byte> read(const std::byte* from, size_t bytes) {
    std::vector<std::byte> values(bytes);
    later([&] {
      if (bytes) std::memcpy(values.data(), at(from, bytes), bytes);
    });
    wait();
    return values;
  }
  // Blocks later work on the stream until `go` returns true.
  void hold(std::function<bool()> go) {
    later([go = std::move(go)] {
      for (const Deadline deadline = Deadline::after(60); !go() && !deadline.passed();) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  void memory_left(size_t* free, size_t* total) {
    const Current current(*this);
    call("cuMemGetInfo", simulated<int (*)(size_t*, size_t*)>("cuMemGetInfo_v2")(free, total));
  }
  // In the mode that frameworks use, in which another thread's calls may invalidate the capture.
  void begin_capture() {
    const Current current(*this);
    call("cuStreamBeginCapture", simulated<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, 0));
  }
  int end_capture() {
    const Current current(*this);
    void* graph = nullptr;
    return simulated<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph);
  }
  void wait() {
    std::atomic<bool> done{false};
    later([&] { done = true; });
    for (const Deadline deadline = Deadline::after(60); !done;) {
      require(!deadline.passed(), "the stream does not come to an end");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  struct Current {
    explicit Current(const Gpu& gpu) { call("cuCtxPushCurrent", simulated<int (*)(void*)>("cuCtxPushCurrent_v2")(gpu.context_)); }
    ~Current() {
      void* was = nullptr;
      simulated<int (*)(void**)>("cuCtxPopCurrent_v2")(&was);
    }
  };
  static void call(const char* what, int code) { require(code == 0, std::string(what) + ": error " + std::to_string(code)); }
  static void* at(const std::byte* address, size_t bytes) {
    return simulated<void* (*)(uint64_t, size_t)>("simcuda_at")(reinterpret_cast<uint64_t>(address), bytes);
  }
  void later(std::function<void()> work) {
    const Current current(*this);
    const auto run = [](void* argument) {
      const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(argument));
      (*own)();
    };
    simulated<void (*)(void*, void (*)(void*), void*, int (*)(void*))>("simcuda_enqueue")(
        stream_, run, new std::function<void()>(std::move(work)), nullptr);
  }

  const int ordinal_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::vector<uint64_t> memory_;
  bool lost_ = false;
};

// One rank's program on its GPU: operations on tensors written by its stream and read after their results on
// the same stream.
class GpuProgram {
 public:
  GpuProgram(Program& program, int gpu) : program_(program), gpu_(gpu) {}
  explicit GpuProgram(Program& program) : GpuProgram(program, program.rank) {}
  // Tensors stay until they cannot be used any more, including those of failed operations.
  ~GpuProgram() {
    const Deadline deadline = Deadline::after(20);
    for (const OperationPtr& op : finished_) {
      bool passed = !op->on_device->completion;
      while (!passed && op->on_device->completion->passed(&passed).ok() && !passed && !deadline.passed()) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }
  GpuProgram(const GpuProgram&) = delete;
  Gpu& gpu() { return gpu_; }

  struct Task {
    OperationPtr op;
    std::string name;  // the engine may still change op->request
    std::byte *in = nullptr, *out = nullptr;
    size_t bytes = 0;  // of out
  };

  // The stream will write `values` after the operation is submitted. out_bytes: 0 for in place.
  Status try_submit(Request q, std::vector<std::byte> values, Task* task, size_t out_bytes = 0, float* residual = nullptr,
                    bool with_memory = true) {
    task->name = q.name;
    task->bytes = out_bytes ? out_bytes : values.size();
    if (with_memory) {
      task->in = gpu_.allocate(values.size());
      task->out = out_bytes ? gpu_.allocate(out_bytes) : task->in;
      gpu_.write(task->in, std::move(values));
    }
    const Place place = gpu_.place();
    return program_.engine.submit(std::move(q), task->in, task->out, &task->op, residual, &place);
  }
  Task submit(Request q, std::vector<std::byte> values, size_t out_bytes = 0, float* residual = nullptr) {
    Task task;
    const Status s = try_submit(std::move(q), std::move(values), &task, out_bytes, residual);
    require(s.ok(), "submitting: " + s.message());
    return task;
  }
  Status finish(const Task& task) {
    require(program_.engine.wait(*task.op, Deadline::after(program_.patience)), "'" + task.name + "' does not end");
    finished_.push_back(task.op);
    return task.op->status();
  }
  // The result, as the stream sees it.
  std::vector<std::byte> result(Task& task) {
    const Status s = finish(task);
    require(s.ok(), s.message());
    const OnDevice& on = *task.op->on_device;
    if (on.completion) require(on.completion->order(gpu_.stream()).ok(), "order");
    if (task.op->output) {
      task.bytes = task.op->output->bytes();
      task.out = gpu_.allocate(task.bytes);
      require(program_.engine.copy_output(*task.op, task.out, gpu_.stream()).ok(), "copy_output");
    }
    return gpu_.read(task.out, task.bytes);
  }
  template <class T>
  std::vector<T> values(Task& task) {
    const std::vector<std::byte> bytes = result(task);
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  Program& program_;
  Gpu gpu_;
  std::vector<OperationPtr> finished_;
};

using OnGpu = GpuProgram::Task;

// Configures the driver before its first use: four GPUs, one for each rank.
inline const bool four_gpus = ::setenv("SIMCUDA_DEVICES", "4", 1) == 0;

inline Setup on_gpus(Layout layout) {
  Setup setup{.layout = layout, .settings = crowded(), .arena = 0};
  setup.settings.cuda_library = HVD_SIMULATED_DIR "/libcuda.so.1";
  return setup;
}

// Runs body(program, program on its GPU) on a thread for each rank, on the GPU of the rank's number or all on
// one.
using GpuBody = std::function<void(Program&, GpuProgram&)>;
inline void check_on_gpus(EngineWorld& world, const GpuBody& body, std::optional<int> gpu = {}) {
  CHECK(run(world, [&](Program& p) {
    GpuProgram g(p, gpu.value_or(p.rank));
    body(p, g);
  }) == "");
}
inline void check_on_gpus(int size, const Setup& setup, const GpuBody& body, std::optional<int> gpu = {}) {
  EngineWorld world(size, setup);
  check_on_gpus(world, body, gpu);
}

inline void set_knob(const char* knob, int64_t value) {
  require(simulated<int (*)(const char*, int64_t)>("simcuda_set")(knob, value) == 0, knob);
}

// The ranks' log output.
class Log {
 public:
  LogSink sink() {
    return [this](LogLevel level, const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back((level == LogLevel::warning ? "warning: " : "") + line);
    };
  }
  // How many lines contain it.
  int times(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) { return contains(line, part); }));
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// ---- values -----------------------------------------------------------------------------------------------------------------
inline std::vector<float> ramp(size_t n, int rank) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>((i % 1000) + static_cast<size_t>(rank));
  return values;
}

// Sum over the ranks of ramp().
inline std::vector<float> summed(size_t n, int size) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = static_cast<float>((i % 1000) * static_cast<size_t>(size)) + static_cast<float>(size * (size - 1) / 2);
  return values;
}

// Small numbers, so that sums and products are finite in every dtype; all bits for integers.
inline std::vector<std::byte> numbers(DType d, size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random() % 4000) / 1024 - 2;
  std::vector<std::byte> out(n * size_of(d));
  if (is_half(d)) {
    narrow(d, out.data(), values.data(), n);
  } else if (d == DType::float32) {
    std::memcpy(out.data(), values.data(), out.size());
  } else if (d == DType::float64) {
    for (size_t i = 0; i < n; ++i) reinterpret_cast<double*>(out.data())[i] = values[i];
  } else {
    for (std::byte& b : out) b = static_cast<std::byte>(random() % (d == DType::boolean ? 2 : 256));
  }
  return out;
}

inline Request of_floats(Kind kind, const std::string& name, size_t n, ReduceOp op = ReduceOp::sum) {
  Request q = Program::request(kind, name, {static_cast<int64_t>(n)}, DType::float32);
  q.op = op;
  return q;
}

}  // namespace hvd::testing
