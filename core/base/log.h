// Log sink, the only output of the core besides Status. The owner of the engine sets the sink: Python prints messages
// to stderr with the rank. Without a sink, messages are dropped.
#pragma once
#include <functional>
#include <string>

namespace hvd {

enum class LogLevel : int { trace = 0, debug = 1, info = 2, warning = 3, error = 4, fatal = 5 };
using LogSink = std::function<void(LogLevel, const std::string&)>;

}  // namespace hvd
