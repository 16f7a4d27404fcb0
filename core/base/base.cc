// The base floor is headers only; a static library needs one object.
#include "base/dtype.h"
#include "base/status.h"
