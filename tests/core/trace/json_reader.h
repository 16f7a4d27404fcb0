// Reads JSON strictly (RFC 8259), for tests of what is written. Numbers are double; an object's members keep no order.
#pragma once
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
  std::string text;  // bytes as they are in the document, but for escapes
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
  // Nothing: it is no JSON.
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

  void blanks() {
    while (!rest_.empty() && std::string_view(" \t\r\n").find(rest_.front()) != std::string_view::npos) rest_.remove_prefix(1);
  }
  bool take(std::string_view expected) {
    if (rest_.substr(0, expected.size()) != expected) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  bool value(Json* out) {
    if (rest_.empty()) return false;
    switch (rest_.front()) {
      case '{': return object(out);
      case '[': return array(out);
      case '"': out->type = Json::Type::string; return string(&out->text);
      case 't':
        out->type = Json::Type::boolean;
        out->truth = true;
        return take("true");
      case 'f': out->type = Json::Type::boolean; return take("false");
      case 'n': return take("null");
      default: return number(out);
    }
  }
  bool object(Json* out) {
    out->type = Json::Type::object;
    take("{");
    blanks();
    if (take("}")) return true;
    do {
      blanks();
      std::string name;
      if (!string(&name)) return false;
      blanks();
      if (!take(":")) return false;
      blanks();
      if (!value(&out->members[name])) return false;
      blanks();
    } while (take(","));
    return take("}");
  }
  bool array(Json* out) {
    out->type = Json::Type::array;
    take("[");
    blanks();
    if (take("]")) return true;
    do {
      blanks();
      if (!value(&out->items.emplace_back())) return false;
      blanks();
    } while (take(","));
    return take("]");
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
        continue;
      }
      if (rest_.empty()) return false;
      const char e = rest_.front();
      rest_.remove_prefix(1);
      const size_t plain = std::string_view("\"\\/bfnrt").find(e);
      if (plain != std::string_view::npos) {
        out->push_back("\"\\/\b\f\n\r\t"[plain]);
      } else if (e == 'u' && rest_.size() >= 4) {
        const std::string digits(rest_.substr(0, 4));
        char* end = nullptr;
        const long code = std::strtol(digits.c_str(), &end, 16);
        if (*end || code > 0x7F) return false;  // we escape no others
        out->push_back(static_cast<char>(code));
        rest_.remove_prefix(4);
      } else {
        return false;
      }
    }
    return false;
  }
  bool number(Json* out) {
    out->type = Json::Type::number;
    const size_t n = std::min(rest_.find_first_not_of("0123456789+-.eE"), rest_.size());
    const std::string digits(rest_.substr(0, n));
    if (digits.empty() || digits.front() == '+' || digits.front() == '.' || (digits[0] == '0' && digits.size() > 1 && digits[1] != '.'))
      return false;
    char* end = nullptr;
    out->number = std::strtod(digits.c_str(), &end);
    rest_.remove_prefix(n);
    return *end == 0;
  }

  std::string_view rest_;
};

}  // namespace hvd::testing
