// Backend for host memory, with shared memory inside a host and links between hosts.
#pragma once
#include <memory>
#include <string>

#include "backends/backend.h"

namespace hvd {

// `override_text` is described in plan/algorithms.h. Return Code::invalid_argument if it cannot be parsed.
Status make_host_backend(const std::string& override_text, std::unique_ptr<Backend>* out);

}  // namespace hvd
