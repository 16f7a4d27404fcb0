// Writing JSON (RFC 8259): strings that are valid whatever bytes they come from, and the little structure that lists of values need.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

// Appends `text` in quotes. Bytes that are no UTF-8 become U+FFFD, so the result is always valid.
void append_json(std::string* out, std::string_view text);

}  // namespace hvd
