// Reports of the checker.
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "driver.h"
#include "streams.h"

namespace simcuda {
namespace {

struct Collected {
  std::mutex mutex;
  std::string text;
};
Collected& collected() {
  static auto* const all = new Collected;
  return *all;
}

}  // namespace

void violation(const std::string& text) {
  if (knobs().collect) {
    std::unique_lock lock(collected().mutex);
    collected().text += text + "\n";
    return;
  }
  std::fprintf(stderr, "simcuda: %s\n", text.c_str());
  std::fflush(stderr);
  std::abort();
}

std::string what_streams_do() {
  std::string text = "streams:";
  for (auto& [handle, stream] : driver().streams) {
    if (stream->queue.empty()) continue;
    text += " [" + std::to_string(stream->number) + (stream->running ? " runs " : " waits with ") + stream->queue.front().name + ", " +
            std::to_string(stream->queue.size() - 1) + " behind it]";
  }
  return text;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

__attribute__((visibility("default"))) void simcuda_violation(const char* text) { violation(text); }

__attribute__((visibility("default"))) const char* simcuda_violations(void) {
  static auto* const texts = new std::deque<std::string>;  // kept, because callers may still read the text
  std::unique_lock lock(collected().mutex);
  if (collected().text.empty()) return "";
  texts->push_back(std::move(collected().text));
  collected().text.clear();
  return texts->back().c_str();
}

__attribute__((visibility("default"))) int simcuda_set(const char* name, int64_t value) {
  Knob* knob = find_knob(name);
  if (!knob) return -1;
  *knob = value;
  driver().changed.notify_all();
  return 0;
}

__attribute__((visibility("default"))) uint64_t simcuda_calls(const char* name) {
  std::unique_lock lock(driver().mutex);
  auto found = driver().calls.find(name);
  return found == driver().calls.end() ? 0 : found->second;
}

}  // extern "C"
