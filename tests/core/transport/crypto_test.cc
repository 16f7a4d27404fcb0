// Encryption libraries: each can open what another has sealed.
#include <doctest/doctest.h>

#include <algorithm>

#include "../encrypted.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

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

TEST_CASE("what one library seals every library opens, in place or not") {
  const auto libraries = crypto_libraries();
  const auto extra = pattern(4);
  const CipherNonce nonce{1, 2, 3};
  for (Cipher cipher : kBoth) {
    for (size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{4097}, SecureLink::kMaxText}) {
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
  const CipherKey own = key_of(3, 4), peer = key_of(5, 6);
  for (const Library& one : libraries) {
    for (const Library& other : libraries) {
      CipherKey my_public, their_public, here, there;
      REQUIRE(one->public_key(own, &my_public));
      REQUIRE(other->public_key(peer, &their_public));
      REQUIRE(one->shared_key(own, their_public, &here));
      REQUIRE(other->shared_key(peer, my_public, &there));
      CHECK(here == there);
      CHECK(here != my_public);
    }
    CipherKey nothing;
    CHECK_FALSE(one->shared_key(own, CipherKey{}, &nothing));
    CHECK_FALSE(one->shared_key(own, CipherKey{1}, &nothing));
  }
}

TEST_CASE("what is no library for encryption is refused by name") {
  Library library;
  const Status absent = CryptoLibrary::load("/nowhere/libcrypto.so", &library);
  CHECK(absent.code() == Code::invalid_argument);
  CHECK(absent.message().find("'/nowhere/libcrypto.so' cannot be loaded") != std::string::npos);
  const Status other = CryptoLibrary::load("libc.so.6", &library);
  CHECK(other.message().find("'libc.so.6' must be OpenSSL's libcrypto") != std::string::npos);
  CHECK(library == nullptr);
}
