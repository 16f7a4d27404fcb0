#include "turns.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "knobs.h"

namespace simcuda {

using Time = std::chrono::steady_clock;

// The turns of this process on one device. Whoever has bound the device's name as a socket has the GPU: that ends with the process.
struct Slices {
  std::string name;
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0, running = 0;
  bool ours = false;

  bool wanted() const { return waiting + running > 0; }
};

namespace {

constexpr auto kPause = std::chrono::microseconds(100);

// A socket that is bound to the name, or -1 while another process has it.
int try_to_take(const std::string& name) {
  const int taken = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string hidden = "simcuda-" + std::to_string(getuid()) + "-" + name;
  std::memcpy(address.sun_path + 1, hidden.data(), hidden.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + hidden.size());
  if (taken >= 0 && bind(taken, reinterpret_cast<sockaddr*>(&address), bytes) == 0) return taken;
  if (taken >= 0) close(taken);
  return -1;
}

// Takes the GPU whenever something wants to run, for one slice or until nothing does, and gives others time to take it.
void take_turns(Slices& slices) {
  std::unique_lock lock(slices.mutex);
  for (;;) {
    slices.changed.wait(lock, [&] { return slices.wanted(); });
    lock.unlock();
    int taken = -1;
    while ((taken = try_to_take(slices.name)) < 0) std::this_thread::sleep_for(kPause);
    lock.lock();
    slices.ours = true;
    slices.changed.notify_all();
    const auto end = Time::now() + std::chrono::milliseconds(knobs().slice_ms);
    while (slices.wanted() && Time::now() < end) slices.changed.wait_until(lock, std::min(end, Time::now() + 5 * kPause));
    slices.ours = false;
    close(taken);
    lock.unlock();
    std::this_thread::sleep_for(3 * kPause);
    lock.lock();
  }
}

Slices& slices_of(const std::string& device) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, Slices*>;
  std::unique_lock lock(mutex);
  Slices*& found = (*all)[device];
  if (!found) {
    found = new Slices;
    found->name = device;
    std::thread(take_turns, std::ref(*found)).detach();
  }
  return *found;
}

}  // namespace

Turn::Turn(const std::string& device) {
  if (knobs().slice_ms <= 0) return;
  slices_ = &slices_of(device);
  std::unique_lock lock(slices_->mutex);
  ++slices_->waiting;
  slices_->changed.notify_all();
  slices_->changed.wait(lock, [&] { return slices_->ours; });
  --slices_->waiting;
  ++slices_->running;
}

Turn::~Turn() {
  if (!slices_) return;
  std::unique_lock lock(slices_->mutex);
  --slices_->running;
  slices_->changed.notify_all();
}

}  // namespace simcuda
