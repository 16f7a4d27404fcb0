#include "knobs.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace simmpi {
namespace {

// "NAME:K@RANK", where K and RANK may be missing.
struct Target {
  std::string name;
  long call = 0, rank = -1;
};

Target parse(std::string text) {
  Target t;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    t.rank = std::atol(text.c_str() + at + 1);
    text.resize(at);
  }
  if (const size_t at = text.find(':'); at != std::string::npos) {
    t.call = std::atol(text.c_str() + at + 1);
    text.resize(at);
  }
  t.name = text;
  return t;
}

bool meant(const char* variable, const char* name, Target* out) {
  *out = parse(knob(variable));
  return out->name == name && (out->rank < 0 || out->rank == knob_number("RANK", 0));
}

}  // namespace

std::string knob(const char* name) {
  const char* value = std::getenv((std::string("SIMMPI_") + name).c_str());
  return value ? value : "";
}

long knob_number(const char* name, long otherwise) {
  const std::string text = knob(name);
  return text.empty() ? otherwise : std::atol(text.c_str());
}

bool enter(const char* name) {
  static auto* const mutex = new std::mutex;
  static auto* const calls = new std::map<std::string, long>;
  long number = 0;
  {
    std::lock_guard lock(*mutex);
    number = ++(*calls)[name];
  }
  Target target;
  if (meant("BLOCK", name, &target)) {
    for (;;) ::pause();
  }
  return meant("FAIL", name, &target) && number == target.call;
}

bool never_ends(const char* name) {
  Target target;
  return meant("NEVER", name, &target);
}

bool breaks(const char* name) {
  Target target;
  return meant("BREAK", name, &target);
}

void mistake(const std::string& text) {
  std::fprintf(stderr, "simulated MPI, rank %ld: %s\n", knob_number("RANK", 0), text.c_str());
  std::abort();
}

}  // namespace simmpi
