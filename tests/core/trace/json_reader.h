// A strict JSON reader (RFC 8259) for tests of output. Numbers are double; an object's members keep no order.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::testing {

struct Json {
  enum class Type { null, boolean, number, string, array, object } type = Type::null;
  bool truth = false;
  double number = 0;
  std::string text;  // bytes of the document, with escapes decoded
  std::vector<Json> items;
  std::map<std::string, Json> members;

  bool has(const std::string& name) const { return members.count(name) > 0; }
  const Json& operator[](const std::string& name) const {
    static const Json none;
    const auto it = members.find(name);
    return it == members.end() ? none : it->second;
  }
};

class JsonReader {
 public:
  // Returns nothing if the text is not JSON.
  static std::optional<Json> read(std::string_view text) {
    JsonReader reader(text);
    Json value;
    reader.blanks();
    if (!reader.value(&value)) return {};
    reader.blanks();
    if (!reader.rest_.empty()) return {};
    return value;
  }

 private:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  void blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  bool take(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  bool value(Json* out) {
    if (take("null")) return true;
    out->type = Json::Type::boolean;
    if (take("false") || (out->truth = take("true"))) return true;
    const char first = rest_.empty() ? 0 : rest_.front();
    if (first == '"') return out->type = Json::Type::string, string(&out->text);
    if (first == '{' || first == '[') return list(out, first == '{');
    return number(out);
  }
  bool list(Json* out, bool object) {
    const std::string_view end = object ? "}" : "]";
    out->type = object ? Json::Type::object : Json::Type::array;
    rest_.remove_prefix(1);
    blanks();
    if (take(end)) return true;
    do {
      blanks();
      std::string name;
      if (object && (!string(&name) || (blanks(), !take(":")))) return false;
      blanks();
      if (!value(object ? &out->members[name] : &out->items.emplace_back())) return false;
      blanks();
    } while (take(","));
    return take(end);
  }
  bool string(std::string* out) {
    if (!take("\"")) return false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out->push_back(c);
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }
  // Accepts only the escapes that the engine writes: \" \\ and \u00XX.
  bool escape(std::string* out) {
    if (take("\"")) return out->push_back('"'), true;
    if (take("\\")) return out->push_back('\\'), true;
    if (!take("u00") || rest_.size() < 2) return false;
    const std::string digits(rest_.substr(0, 2));
    char* end = nullptr;
    out->push_back(static_cast<char>(std::strtol(digits.c_str(), &end, 16)));
    rest_.remove_prefix(2);
    return !*end;
  }
  bool number(Json* out) {
    out->type = Json::Type::number;
    const std::string digits(rest_.substr(0, rest_.find_first_not_of("0123456789+-.eE")));
    if (digits.empty() || digits.front() == '+' || digits.front() == '.' || (digits[0] == '0' && digits.size() > 1 && digits[1] != '.'))
      return false;
    char* end = nullptr;
    out->number = std::strtod(digits.c_str(), &end);
    rest_.remove_prefix(digits.size());
    return *end == 0;
  }

  std::string_view rest_;
};

}  // namespace hvd::testing
