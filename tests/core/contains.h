// Substring search for tests of messages.
#pragma once
#include <string>

namespace hvd::testing {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hvd::testing
