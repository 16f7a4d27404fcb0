// Encoding of control messages: little-endian numbers of fixed size, and sequences with a length prefix. The reader
// never reads past its end and never allocates more than the data present. It reports errors once, at the end (ok()).
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace hvd {

class Writer {
 public:
  explicit Writer(std::string* out) : out_(*out) {}
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& s) {
    put(static_cast<uint32_t>(s.size()));
    out_.append(s);
  }
  template <class T>
  void put(const std::vector<T>& v) {
    put(static_cast<uint32_t>(v.size()));
    for (const T& x : v) put(x);
  }

 private:
  std::string& out_;
};

class Reader {
 public:
  Reader(const char* at, const char* end) : at_(at), end_(end) {}
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void get(T* value) {
    if (!have(sizeof *value)) return;
    std::memcpy(value, at_, sizeof *value);
    at_ += sizeof *value;
  }
  // Read an enum value. Reject values above `last`, because the data come from another process.
  template <class T>
    requires std::is_enum_v<T>
  void get(T* value, T last) {
    get(value);
    if (ok_ && *value > last) ok_ = false;
  }
  void get(bool* value) {
    uint8_t byte = 0;
    get(&byte);
    *value = byte != 0;
  }
  void get(std::string* s) {
    uint32_t n = 0;
    get(&n);
    if (!have(n)) return;
    s->assign(at_, n);
    at_ += n;
  }
  template <class T>
  void get(std::vector<T>* v) {
    // Read the number of elements that precedes a sequence.
    const uint32_t n = count(std::is_arithmetic_v<T> ? sizeof(T) : sizeof(uint32_t));
    v->resize(n);
    for (uint32_t i = 0; i < n && ok_; ++i) get(&(*v)[i]);
  }
  // Read the number of elements of a sequence. Reject it if the remaining data cannot hold `least` bytes per element.
  uint32_t count(size_t least) {
    uint32_t n = 0;
    get(&n);
    if (!ok_ || n > static_cast<size_t>(end_ - at_) / least) {
      ok_ = false;
      return 0;
    }
    return n;
  }
  bool ok() const { return ok_; }
  void fail() { ok_ = false; }
  const char* at() const { return at_; }

 private:
  bool have(size_t n) {
    if (ok_ && static_cast<size_t>(end_ - at_) < n) ok_ = false;
    return ok_;
  }
  const char* at_;
  const char* end_;
  bool ok_ = true;
};

}  // namespace hvd
