// JSON writer (RFC 8259). It appends strings, object members and lists of integers to a string. Input strings can
// contain any bytes; the output is always valid JSON.
#pragma once
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace hvd {

template <class T>
concept JsonInteger = std::integral<T> && !std::same_as<T, bool>;

// Append `text` in quotes. Invalid UTF-8 becomes U+FFFD, so that the output is valid JSON.
void append_json(std::string* out, std::string_view text);

template <JsonInteger Integer>
void append_json(std::string* out, Integer value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out->append(text, end);
}

// Append the name of an object member, preceded by a comma if it is not the first one. The name must not need escapes.
// The caller appends the value.
void append_name(std::string* out, std::string_view name);

void append_member(std::string* out, std::string_view name, std::string_view text);

template <JsonInteger Integer>
void append_member(std::string* out, std::string_view name, Integer value) {
  append_name(out, name);
  append_json(out, value);
}

// The template accepts only bool, because pointers would otherwise be converted to bool implicitly.
template <std::same_as<bool> Truth>
void append_member(std::string* out, std::string_view name, Truth value) {
  append_name(out, name);
  out->append(value ? "true" : "false");
}

// Append the numbers of a list without brackets, for example "1,2,3".
template <class Integers>
void append_items(std::string* out, const Integers& values) {
  bool first = true;
  for (const JsonInteger auto value : values) {
    if (!first) out->push_back(',');
    first = false;
    append_json(out, value);
  }
}

// Append an object member with a list as its value.
template <class Integers>
void append_list(std::string* out, std::string_view name, const Integers& values) {
  append_name(out, name);
  out->push_back('[');
  append_items(out, values);
  out->push_back(']');
}

}  // namespace hvd
