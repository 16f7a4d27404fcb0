// Writing JSON (RFC 8259), piece by piece: strings that are valid whatever bytes they come from, members of objects, lists of numbers.
#pragma once
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace hvd {

template <class T>
concept JsonInteger = std::integral<T> && !std::same_as<T, bool>;

// Appends `text` in quotes. Bytes that are no UTF-8 become U+FFFD, so the result is always valid.
void append_json(std::string* out, std::string_view text);

template <JsonInteger Integer>
void append_json(std::string* out, Integer value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out->append(text, end);
}

// A member's name, one in which nothing needs an escape, after a comma unless the object begins just before. Its value is to follow.
void append_name(std::string* out, std::string_view name);

void append_member(std::string* out, std::string_view name, std::string_view text);

template <JsonInteger Integer>
void append_member(std::string* out, std::string_view name, Integer value) {
  append_name(out, name);
  append_json(out, value);
}

template <std::same_as<bool> Truth>  // nothing becomes one on its way here
void append_member(std::string* out, std::string_view name, Truth value) {
  append_name(out, name);
  out->append(value ? "true" : "false");
}

// As in 1,2,3: what is between a list's brackets.
template <class Integers>
void append_items(std::string* out, const Integers& values) {
  bool first = true;
  for (const JsonInteger auto value : values) {
    if (!first) out->push_back(',');
    first = false;
    append_json(out, value);
  }
}

// A list as a member.
template <class Integers>
void append_list(std::string* out, std::string_view name, const Integers& values) {
  append_name(out, name);
  out->push_back('[');
  append_items(out, values);
  out->push_back(']');
}

}  // namespace hvd
