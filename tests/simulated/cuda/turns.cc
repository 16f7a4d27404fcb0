#include "turns.h"

namespace simcuda {

Turn::Turn() {}
Turn::~Turn() {}

}  // namespace simcuda
