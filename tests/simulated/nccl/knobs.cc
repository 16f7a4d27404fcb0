#include "knobs.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "driver.h"
#include "simnccl.h"

namespace simnccl {
namespace {

constexpr const char* kNames[] = {"version",     "fail",        "hang",     "lazy",   "delay_us",
                                  "abort_waits", "hostid_rank", "blocking", "hostid", "creation_ms"};

struct State {
  std::mutex mutex;
  std::map<std::string, std::string> knobs;
  std::map<std::string, uint64_t> calls;  // all calls
  std::map<std::string, uint64_t> counted;  // calls of the selected rank since the knobs were set
  std::string last_error;
  // Kept here and not thread_local: race checkers misjudge how thread memory of a late-loaded library ends.
  std::map<std::thread::id, std::string> queried;
  std::minstd_rand random{static_cast<unsigned>(::getpid())};
  std::atomic<int> kernels{0};

  State() {
    for (const char* name : kNames) {
      std::string variable = name;
      for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      variable = variable == "BLOCKING" ? "NCCL_COMM_BLOCKING" : variable == "HOSTID" ? "NCCL_HOSTID" : "SIMNCCL_" + variable;
      if (const char* value = std::getenv(variable.c_str())) knobs[name] = value;
    }
  }
};

State& state() {
  static State* const s = new State;  // outlives every thread
  return *s;
}

// Writes warnings like NCCL's, where its users look for them.
void warn(const std::string& text) {
  const char* const level = std::getenv("NCCL_DEBUG");
  if (!level || (std::strcmp(level, "WARN") != 0 && std::strcmp(level, "INFO") != 0)) return;
  std::printf("host:%d:%d [0] simnccl.cc:1 NCCL WARN %s\n", ::getpid(), ::getpid(), text.c_str());
  std::fflush(stdout);
}

// NAME:K[@RANK][=RESULT], or without NAME.
struct Order {
  std::string name;
  uint64_t k = 0;
  int rank = -1;
  int result = 0;
};
Order parse(const std::string& text, bool named) {
  Order order;
  size_t at = 0;
  if (named) {
    at = text.find(':');
    if (at == std::string::npos) return order;
    order.name = text.substr(0, at++);
  }
  order.k = std::strtoull(text.c_str() + at, nullptr, 10);
  if (const size_t rank = text.find('@', at); rank != std::string::npos) order.rank = std::atoi(text.c_str() + rank + 1);
  if (const size_t result = text.find('=', at); result != std::string::npos) order.result = std::atoi(text.c_str() + result + 1);
  return order;
}

// Counts and compares; needs the lock.
bool strikes(State& s, const Order& order, const std::string& counter, int rank) {
  if (order.k == 0 || (order.rank >= 0 && order.rank != rank)) return false;
  return ++s.counted[counter] == order.k;
}

}  // namespace

std::string knob(const std::string& name) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto found = s.knobs.find(name);
  return found == s.knobs.end() ? std::string() : found->second;
}

long knob_number(const std::string& name, long otherwise) {
  const std::string text = knob(name);
  return text.empty() ? otherwise : std::strtol(text.c_str(), nullptr, 10);
}

int version() { return static_cast<int>(knob_number("version", SIMNCCL_BUILT_AS)); }

ncclResult_t count_call(const char* name, int rank) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  ++s.calls[name];
  const Order order = parse(s.knobs["fail"], true);
  if (order.name != name || !strikes(s, order, "fail", rank)) return ncclSuccess;
  s.last_error = std::string("simulated failure of nccl") + name;
  warn(s.last_error);
  return order.result != 0 ? order.result : ncclInternalError;
}

Fate count_kernel(int rank, ncclResult_t* async_error) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  ++s.kernels;
  const Order hang = parse(s.knobs["hang"], false);
  if (strikes(s, hang, "hang", rank)) return Fate::hangs;
  const Order fail = parse(s.knobs["fail"], true);
  if (fail.name != "async" || !strikes(s, fail, "fail", rank)) return Fate::runs;
  *async_error = fail.result != 0 ? fail.result : ncclRemoteError;
  s.last_error = "simulated error of the network";
  warn(s.last_error);
  return Fate::fails;
}

ncclResult_t failed(ncclResult_t result, const std::string& text) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.last_error = text;
  warn(text);
  return result;
}

const char* last_error() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  std::string& own = s.queried[std::this_thread::get_id()];
  own = s.last_error;
  return own.c_str();
}

void mistake(const std::string& text) {
  std::fputs(("simnccl: " + text + "\n").c_str(), stderr);
  driver().violation(("NCCL: " + text).c_str());
}

void random_delay() {
  const long most = knob_number("delay_us", 2000);
  if (most <= 0) return;
  State& s = state();
  unsigned long drawn = 0;
  {
    std::lock_guard lock(s.mutex);
    drawn = s.random();
  }
  std::this_thread::sleep_for(std::chrono::microseconds(drawn % static_cast<unsigned long>(most)));
}

}  // namespace simnccl

using namespace simnccl;

SIMNCCL_API int simnccl_set(const char* name, const char* value) {
  bool known = false;
  for (const char* n : kNames) known = known || std::strcmp(n, name) == 0;
  if (!known) return -1;
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (value) {
    s.knobs[name] = value;
  } else {
    s.knobs.erase(name);
  }
  s.counted.clear();
  return 0;
}

SIMNCCL_API int simnccl_kernels() { return state().kernels; }

SIMNCCL_API uint64_t simnccl_calls(const char* name) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto found = s.calls.find(name);
  return found == s.calls.end() ? 0 : found->second;
}
