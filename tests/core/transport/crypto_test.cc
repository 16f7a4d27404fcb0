// The libraries that encrypt: published examples, and what each makes the other one opens.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "../encrypted.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

std::vector<std::byte> bytes_of(std::string_view digits) {
  auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) out.push_back(static_cast<std::byte>(value(digits[i]) * 16 + value(digits[i + 1])));
  return out;
}
template <class Array>
Array array_of(std::string_view digits) {
  Array out{};
  const auto bytes = bytes_of(digits);
  std::memcpy(out.data(), bytes.data(), std::min(bytes.size(), out.size()));
  return out;
}

constexpr Cipher kBoth[] = {Cipher::aes_256_gcm, Cipher::chacha20_poly1305};

std::vector<std::byte> pattern(size_t n) {
  std::vector<std::byte> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i * 37 + i / 256);
  return out;
}

}  // namespace

TEST_CASE("libraries offer both ciphers, the faster one first; libsodium has AES by instructions of the processor only") {
  bool both = false;
  for (const Library& library : crypto_libraries()) {
    const auto ciphers = library->ciphers();
    CHECK(std::count(ciphers.begin(), ciphers.end(), Cipher::chacha20_poly1305) == 1);
    CHECK(library->exchanges_keys());
    if (ciphers.size() < 2) continue;
    both = true;
    CHECK(ciphers[0] == (processor_has_aes() ? Cipher::aes_256_gcm : Cipher::chacha20_poly1305));
  }
  CHECK((both || !processor_has_aes()));
}

TEST_CASE("published examples: McGrew and Viega's test cases 13 and 14, RFC 8439 A.5") {
  const CipherKey zeros{};
  const CipherNonce zero_nonce{};
  const auto key = array_of<CipherKey>("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0");
  const auto nonce = array_of<CipherNonce>("000000000102030405060708");
  const auto extra = bytes_of("f33388860000000000004e91");
  const auto sealed = bytes_of(
      "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f3558"
      "94cf332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c8559797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b"
      "53c867e4b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b42"
      "2273f548271a0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094fa68f0ff77987130305beaba2eda04df"
      "997b714d6c6f2c29a6ad5cb4022b02709b");
  const auto tag = bytes_of("eead9d67890cbb22392336fea1851f38");
  for (const Library& library : crypto_libraries()) {
    std::byte got_tag[kCipherTag];
    if (auto gcm = library->make(Cipher::aes_256_gcm, zeros, true)) {
      std::vector<std::byte> text(16), out(16);
      REQUIRE(gcm->seal(zero_nonce, {}, text, out.data(), got_tag));
      CHECK(out == bytes_of("cea7403d4d606b6e074ec5d3baf39d18"));
      CHECK(std::equal(got_tag, got_tag + kCipherTag, bytes_of("d0d1c8a799996bf0265b98b5d48ab919").begin()));
    }
    auto chacha = library->make(Cipher::chacha20_poly1305, key, false);
    REQUIRE(chacha);
    std::vector<std::byte> text(sealed.size());
    REQUIRE(chacha->open(nonce, extra, sealed, tag.data(), text.data()));
    const std::string_view begin = "Internet-Drafts are draft documents valid for a maximum of six months";
    CHECK(std::string_view(reinterpret_cast<const char*>(text.data()), begin.size()) == begin);
  }
}

TEST_CASE("what one library seals every library opens, in place or not") {
  const auto libraries = crypto_libraries();
  const auto extra = pattern(4);
  const CipherNonce nonce{1, 2, 3};
  for (Cipher cipher : kBoth) {
    for (size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{4097}, SecureLink::kMostText}) {
      const auto text = pattern(n);
      for (const Library& one : libraries) {
        auto sealer = one->make(cipher, key_of(1, 2), true);
        if (!sealer) continue;
        std::vector<std::byte> sealed = text;
        std::byte tag[kCipherTag];
        REQUIRE(sealer->seal(nonce, extra, sealed, sealed.data(), tag));
        CHECK(sealed != text);
        for (const Library& other : libraries) {
          auto opener = other->make(cipher, key_of(1, 2), false);
          if (!opener) continue;
          std::vector<std::byte> back(n);
          CHECK(opener->open(nonce, extra, sealed, tag, back.data()));
          CHECK(back == text);
          back = sealed;
          CHECK(opener->open(nonce, extra, back, tag, back.data()));
          CHECK(back == text);
        }
      }
    }
  }
}

TEST_CASE("libraries agree on shared keys and refuse points of small order") {
  const auto libraries = crypto_libraries();
  const CipherKey mine = key_of(3, 4), theirs = key_of(5, 6);
  for (const Library& one : libraries) {
    for (const Library& other : libraries) {
      CipherKey my_public, their_public, here, there;
      REQUIRE(one->public_key(mine, &my_public));
      REQUIRE(other->public_key(theirs, &their_public));
      REQUIRE(one->shared_key(mine, their_public, &here));
      REQUIRE(other->shared_key(theirs, my_public, &there));
      CHECK(here == there);
      CHECK(here != my_public);
    }
    CipherKey nothing;
    CHECK_FALSE(one->shared_key(mine, CipherKey{}, &nothing));
    CHECK_FALSE(one->shared_key(mine, CipherKey{1}, &nothing));
  }
}

TEST_CASE("what is no library for encryption is refused by name") {
  Library library;
  const Status absent = CryptoLibrary::load("/nowhere/libcrypto.so", &library);
  CHECK(absent.code() == Code::invalid_argument);
  CHECK(absent.message().find("'/nowhere/libcrypto.so' cannot be loaded") != std::string::npos);
  const Status other = CryptoLibrary::load("libc.so.6", &library);
  CHECK(other.message().find("'libc.so.6' lacks functions; accepted are OpenSSL's libcrypto") != std::string::npos);
  CHECK(library == nullptr);
}
