// Parsing of "name=value" lists that users write, and quoting for errors. Private to this layer.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hvd {

inline std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t");
  return first == s.npos ? std::string_view() : s.substr(first, s.find_last_not_of(" \t") - first + 1);
}

// Starting the concatenation with "'" + ... would cause a false warning of GCC 12 (PR105651).
inline std::string quoted(std::string_view s) { return std::string(1, '\'').append(s).append(1, '\''); }

template <class Value, class Name>
std::string listed(std::span<const Value> values, Name name, std::string_view separator = ", ") {
  std::string text;
  for (const Value& value : values) {
    if (!text.empty()) text += separator;
    text += name(value);
  }
  return text;
}

// Call visit(item), which returns a Status, for each comma-separated part of the text. Blanks around a part are
// removed, and empty parts are skipped.
template <class Visit>
Status each_item(std::string_view text, Visit visit) {
  while (!trimmed(text).empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = trimmed(text.substr(0, comma));
    if (!item.empty()) HVD_RETURN_IF_ERROR(visit(item));
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
  }
  return {};
}

}  // namespace hvd
