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
    {"init", &Knobs::init},
    {"memory", &Knobs::memory},
    {"capability", &Knobs::capability},
    {"processors", &Knobs::processors},
    {"host_alias", &Knobs::host_alias},
    {"no_ipc", &Knobs::no_ipc},
    {"not_exportable", &Knobs::not_exportable},
    {"jit", &Knobs::jit},
    {"peer_access", &Knobs::peer_access},
    {"seed", &Knobs::seed},
    {"delay_us", &Knobs::delay_us},
    {"sync_chance", &Knobs::sync_chance},
    {"slice_ms", &Knobs::slice_ms},
    {"reuse", &Knobs::reuse},
    {"fail_alloc", &Knobs::fail_alloc},
    {"fail_pin", &Knobs::fail_pin},
    {"fail_register", &Knobs::fail_register},
    {"fault", &Knobs::fault},
    {"fault_launch", &Knobs::fault_launch},
    {"watch", &Knobs::watch},
    {"leaks", &Knobs::leaks},
    {"collect", &Knobs::collect},
    {"races", &Knobs::races},
    {"holes", &Knobs::holes},
    {"hang_ms", &Knobs::hang_ms},
};

Knobs* from_environment() {
  auto* made = new Knobs;
  for (const Row& row : kRows) {
    std::string variable = std::string("SIMCUDA_") + row.name;
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
    if (const char* value = std::getenv(variable.c_str()); value && *value) made->*row.member = std::atoll(value);
  }
  return made;
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
