#include "base/json.h"

namespace hvd {
namespace {

// Return the length of the UTF-8 sequence at the start of `text`, or 0 if the sequence is invalid (Unicode standard,
// table 3-7).
size_t sequence(std::string_view text) {
  const auto byte = [text](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto follows = [](uint8_t b) { return (b & 0xC0) == 0x80; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(second) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool good = follows(second) && follows(byte(2)) && !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second > 0x9F);
    return good ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool good =
        follows(second) && follows(byte(2)) && follows(byte(3)) && !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second > 0x8F);
    return good ? 4 : 0;
  }
  return 0;
}

}  // namespace

void append_json(std::string* out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  while (!text.empty()) {
    const char c = text.front();
    size_t length = 1;
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      out->append("\\u00");
      out->push_back(kHex[static_cast<uint8_t>(c) >> 4]);
      out->push_back(kHex[c & 0xF]);
    } else if ((length = sequence(text)) > 0) {
      out->append(text.substr(0, length));
    } else {
      out->append("\xEF\xBF\xBD");
      length = 1;
    }
    text.remove_prefix(length);
  }
  out->push_back('"');
}

void append_name(std::string* out, std::string_view name) {
  out->append(out->empty() || out->back() == '{' ? "\"" : ",\"").append(name).append("\":");
}

void append_member(std::string* out, std::string_view name, std::string_view text) {
  append_name(out, name);
  append_json(out, text);
}

}  // namespace hvd
