// Backend for host memory. It uses shared memory within a host and network connections between hosts.
#pragma once
#include <memory>
#include <string>

#include "backends/backend.h"

namespace hvd {

// plan/algorithms.h describes `override_text`. Return Code::invalid_argument if it cannot be parsed.
Status make_host_backend(const std::string& override_text, std::unique_ptr<Backend>* out);

}  // namespace hvd
