// The core's only way to say something outside a Status. The sink is set by the owner (Python prints to stderr with the rank);
// without one, messages are dropped.
#pragma once
#include <functional>
#include <string>

namespace hvd {

enum class LogLevel : int { trace = 0, debug = 1, info = 2, warning = 3, error = 4, fatal = 5 };
using LogSink = std::function<void(LogLevel, const std::string&)>;

}  // namespace hvd
