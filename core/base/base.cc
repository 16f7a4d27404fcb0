// The base layer consists of headers only, but a static library needs at least one object file.
#include "base/dtype.h"
#include "base/status.h"
