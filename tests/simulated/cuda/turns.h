// Processes on one GPU take turns, as without MPS: with SIMCUDA_SLICE_MS work starts only while this process has the GPU.
#pragma once

namespace simcuda {

// Held while work runs. A piece of work that runs past the slice goes on, but the GPU is others' meanwhile.
class Turn {
 public:
  Turn();
  ~Turn();

 private:
  bool counted_ = false;
};

}  // namespace simcuda
