// Parses the parts of PTX text that the simulated compiler uses. Pure.
#pragma once

#include <map>
#include <string>

namespace simcuda {

struct Ptx {
  int error = 0;  // 0, or the error: 209, 218, 222
  std::string log;  // explanation of the error
  std::map<std::string, size_t> entries;  // size in bytes of each kernel's one parameter; 0 for another type
};

// `version`: the driver's, as from cuDriverGetVersion; `capability`: 10 * major + minor of the device.
Ptx read_ptx(const char* image, int version, int capability);

// The newest PTX version, as 10 * major + minor, that a driver accepts.
int newest_ptx(int driver_version);

}  // namespace simcuda
