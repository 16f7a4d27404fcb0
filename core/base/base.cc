// The base layer has headers only, but a static library needs one object file.
#include "base/dtype.h"
#include "base/status.h"
