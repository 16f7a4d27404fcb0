// Shared by all parts of the simulated driver: its objects, its one lock, and the beginning of each call.
//
// One lock guards everything but the contents of memory; streams run their work without it. Handles are the
// addresses of objects that are never freed, so that a use after destruction is detected.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_abi.h"
#include "knobs.h"
#include "simcuda.h"

namespace simcuda {

struct Stream;
struct Event;
struct Capture;

struct Device {
  int physical;  // index among the host's devices, ignoring CUDA_VISIBLE_DEVICES
  CUuuid uuid;
  std::string uuid_text;
};

struct Context {
  int device;
  int retained = 0;
  bool alive = true;
  Stream* legacy = nullptr;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;  // a stream got or finished an item, or the process ends
  std::atomic<bool> initialised{false}, forked{false}, exited{false};
  std::atomic<int> sticky{0};
  std::vector<Device> devices;
  std::vector<Context*> primaries;  // by device; null while it is not retained
  std::unordered_map<void*, std::unique_ptr<Context>> contexts;
  std::unordered_map<void*, std::unique_ptr<Stream>> streams;
  std::unordered_map<void*, std::unique_ptr<Event>> events;
  std::map<std::pair<uint64_t, Context*>, Stream*> thread_streams;  // handle 2, by thread
  std::vector<std::weak_ptr<Capture>> captures;
  std::map<std::string, uint64_t> calls;
  int stream_threads = 0;
};

Driver& driver();

// Conditions that a function of the driver checks first.
enum Needs : unsigned {
  kNeedsContext = 1,  // 201 without a current context
  kUnsafe = 2,  // invalidates captures that forbid it (capture.cc)
  kMayWait = 4,  // may wait for all work of the device, as allocations do
  kEvenIfFaulty = 8,  // works in spite of a sticky error
  kEvenIfNotInit = 16,  // works before cuInit
};

// The beginning of each call: holds the lock from here on. If `error` is not 0 the call returns it and does
// nothing else.
class Call {
 public:
  Call(const char* name, unsigned needs);
  int error = 0;
  Context* context = nullptr;  // of the calling thread
  const char* name;

  // Waits until `done` holds; a sticky error, or the end of the process, ends the wait with that error.
  int wait(const std::function<bool()>& done);
  std::unique_lock<std::mutex> lock;

 private:
  void check(unsigned needs);
};

// The beginning of a driver function: defines `call`, or returns an error at once.
#define SIMCUDA_CALL(function, needs) \
  Call call(#function, needs);        \
  if (call.error) return call.error

// contexts.cc
Context* current_context();
uint64_t thread_number();

// capture.cc
int unsafe_call(const char* name);  // 0, or 900 after invalidating the captures that forbid the call
extern thread_local int capture_mode;

// faults.cc
void fault(int error);
void injected_fault();
void watch_process();  // fork and exit
// Waits for all work of the device with the probability SIMCUDA_SYNC_CHANCE; a violation while watched.
int may_wait(Call& call);
int wait_for_device(Call& call, int device);

// checks.cc
void violation(const std::string& text);
std::string what_streams_do();

// devices.cc
bool valid(CUdevice device);
int fill_devices();

// SIMCUDA_SEED, different on each rank.
uint64_t seed_of_process();

// A pseudorandom number (splitmix64).
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace simcuda
