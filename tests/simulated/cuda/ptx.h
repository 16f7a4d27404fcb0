// What the simulated compiler reads of PTX text. Pure.
#pragma once

#include <map>
#include <string>

namespace simcuda {

struct Ptx {
  int error = 0;    // 0, or why it cannot be taken: 209, 218, 222
  std::string log;  // in words
  std::map<std::string, size_t> entries;  // bytes of each kernel's one parameter; 0 when it is none of bytes
};

// `version`: the driver's, as cuDriverGetVersion gives it; `capability`: 10 * major + minor of the device.
Ptx read_ptx(const char* image, int version, int capability);

// The newest PTX, as 10 * major + minor, that a driver takes.
int newest_ptx(int driver_version);

}  // namespace simcuda
