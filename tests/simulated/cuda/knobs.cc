#include "knobs.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <string>

#include "simcuda.h"

namespace simcuda {
namespace {

struct Row {
  const char* name;
  Knob Knobs::* member;
};
const Row kRows[] = {
    {"devices", &Knobs::devices},
    {"version", &Knobs::version},
    {"memory", &Knobs::memory},
    {"capability", &Knobs::capability},
    {"no_ipc", &Knobs::no_ipc},
    {"jit", &Knobs::jit},
    {"seed", &Knobs::seed},
    {"delay_us", &Knobs::delay_us},
    {"sync_chance", &Knobs::sync_chance},
    {"fail_alloc", &Knobs::fail_alloc},
    {"fail_pin", &Knobs::fail_pin},
    {"fault", &Knobs::fault},
    {"watch", &Knobs::watch},
    {"collect", &Knobs::collect},
};

Knobs* from_environment() {
  auto* created = new Knobs;
  for (const Row& row : kRows) {
    std::string variable = std::string("SIMCUDA_") + row.name;
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
    if (const char* value = std::getenv(variable.c_str()); value && *value) created->*row.member = std::atoll(value);
  }
  return created;
}

}  // namespace

Knobs& knobs() {
  static Knobs* const all = from_environment();  // never destroyed: threads may outlive static destructors
  return *all;
}

Knob* find_knob(const char* name) {
  auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) { return row.name == std::string(name); });
  return row == std::end(kRows) ? nullptr : &(knobs().*row->member);
}

bool strikes(Knob& countdown) {
  int64_t left = countdown;
  while (left > 0)
    if (countdown.compare_exchange_weak(left, left - 1)) return left == 1;
  return false;
}

}  // namespace simcuda
