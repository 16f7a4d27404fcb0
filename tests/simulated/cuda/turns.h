// Processes on one GPU take turns, as without MPS: with SIMCUDA_SLICE_MS work starts only while this process has the GPU.
#pragma once

#include <string>

namespace simcuda {

// Held while work runs. Work that runs past the slice goes on, since nothing can stop it, but no other begins here until the next one.
class Turn {
 public:
  explicit Turn(const std::string& device);
  ~Turn();

 private:
  struct Slices* slices_ = nullptr;
};

}  // namespace simcuda
