#include "base/json.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

using namespace hvd;

namespace {

std::string json(std::string_view text) {
  std::string out;
  append_json(&out, text);
  return out;
}

}  // namespace

TEST_CASE("strings in JSON: what must be escaped is, letters of all scripts stay, and what is no UTF-8 is replaced") {
  CHECK(json("allreduce.x") == "\"allreduce.x\"");
  CHECK(json("a\"b\\c") == R"("a\"b\\c")");
  CHECK(json(std::string_view("\n\t\0\x1f\x7f", 5)) == R"("\u000a\u0009\u0000\u001f\u007f")");
  CHECK(json("gr\xC3\xB6\xC3\x9F\x65 \xE4\xB8\xAD \xF0\x9F\x98\x80") == "\"gr\xC3\xB6\xC3\x9F\x65 \xE4\xB8\xAD \xF0\x9F\x98\x80\"");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(json("\xFFx") == "\"" + bad + "x\"");
  CHECK(json("\xC3") == "\"" + bad + "\"");  // truncated
  CHECK(json("\xC0\xAF") == "\"" + bad + bad + "\"");  // overlong encoding
  CHECK(json("\xED\xA0\x80") == "\"" + bad + bad + bad + "\"");  // half of a surrogate pair
  CHECK(json("\xF4\x90\x80\x80") == "\"" + bad + bad + bad + bad + "\"");  // beyond Unicode
  CHECK(json("\xE4\xB8\"") == "\"" + bad + bad + "\\\"\"");
}
