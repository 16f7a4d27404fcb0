// Encryption by a library that the system or a Python package keeps up to date: OpenSSL's libcrypto (1.1.1 or later) or libsodium,
// loaded at run time by the path that Python has found, so nothing is linked and nothing is written anew. What a library claims to
// have is tried on published examples before it is used.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/link.h"

namespace hvd {

enum class Cipher : unsigned char {
  aes_256_gcm,        // NIST SP 800-38D
  chacha20_poly1305,  // RFC 8439
};
const char* name_of(Cipher cipher);
// Does the processor have instructions for AES? Then AES-256-GCM is several times as fast as ChaCha20-Poly1305, else the reverse.
bool processor_has_aes();

using CipherKey = std::array<unsigned char, 32>;
using CipherNonce = std::array<unsigned char, 12>;
inline constexpr size_t kCipherTag = 16;  // bytes

// Overwrites keys that are not needed any more.
void wipe(void* data, size_t bytes);

// Authenticated encryption with one key in one direction. A nonce must never be used twice with a key. Used by one thread at a time.
class Aead {
 public:
  virtual ~Aead() = default;
  // Encrypts `text` to text.size() bytes at `out`, which may be text.data(), and puts the tag of both `extra` and text to `tag`.
  virtual bool seal(const CipherNonce& nonce, ConstBytes extra, ConstBytes text, std::byte* out, std::byte* tag) = 0;
  // The reverse. false: something was altered, and what lies at `out` means nothing.
  virtual bool open(const CipherNonce& nonce, ConstBytes extra, ConstBytes sealed, const std::byte* tag, std::byte* out) = 0;
};

class CryptoLibrary {
 public:
  // `path`: what dlopen(3) takes. The library stays loaded until the process ends.
  static Status load(const std::string& path, std::shared_ptr<const CryptoLibrary>* out);
  virtual ~CryptoLibrary() = default;

  // That gave the right answers; the faster one on this processor first.
  std::vector<Cipher> ciphers() const;
  // For sealing or for opening. Null when the library does not have the cipher.
  virtual std::unique_ptr<Aead> make(Cipher cipher, const CipherKey& key, bool sealing) const = 0;
  // Diffie-Hellman on Curve25519 (RFC 7748): the public key of `secret`, and what both sides get out of one's own secret and the
  // other's public key. false: the library cannot, or `theirs` is none of the points that an honest side sends.
  virtual bool public_key(const CipherKey& secret, CipherKey* out) const = 0;
  virtual bool shared_key(const CipherKey& secret, const CipherKey& theirs, CipherKey* out) const = 0;
  bool exchanges_keys() const;  // it gave the right answer

 protected:
  CryptoLibrary() = default;
};

// Each null when `handle`, of dlopen(3), is another library or too old.
std::unique_ptr<CryptoLibrary> openssl_library(void* handle);
std::unique_ptr<CryptoLibrary> sodium_library(void* handle);

}  // namespace hvd
