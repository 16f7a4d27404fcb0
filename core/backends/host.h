// Backend for host memory. It uses shared memory within a host and network connections between hosts.
#pragma once
#include <memory>
#include <string>

#include "backends/backend.h"

namespace hvd {

// Create the backend for tensors in host memory. For the syntax of `override_text`, see plan/algorithms.h. Return
// Code::invalid_argument if it cannot be parsed.
Status make_host_backend(const std::string& override_text, std::unique_ptr<Backend>* out);

}  // namespace hvd
