// Encryption with OpenSSL's libcrypto (1.1.1 or later) or libsodium, from the system or from a Python package. The library is loaded at run
// time from the path that Python found, and checked against published test vectors before use. Nothing is linked, and no cipher is
// implemented here.
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
  // AES-256-GCM, defined in NIST SP 800-38D.
  aes_256_gcm,
  // ChaCha20-Poly1305, defined in RFC 8439.
  chacha20_poly1305,
};
const char* name_of(Cipher cipher);
// True if the processor has AES instructions. AES-256-GCM is then several times as fast as ChaCha20-Poly1305; without
// them, it is several times slower.
bool processor_has_aes();

using CipherKey = std::array<unsigned char, 32>;
using CipherNonce = std::array<unsigned char, 12>;
// Size of an authentication tag in bytes.
inline constexpr size_t kCipherTag = 16;

void wipe(void* data, size_t bytes);

// Authenticated encryption with one key, in one direction. A nonce must never be used twice with the same key. Not
// thread-safe.
class Aead {
 public:
  virtual ~Aead() = default;
  // Encrypt `text` and write text.size() bytes to `out`, which can be text.data(). Write the tag, which authenticates
  // both `extra` and the text, to `tag`.
  virtual bool seal(const CipherNonce& nonce, ConstBytes extra, ConstBytes text, std::byte* out, std::byte* tag) = 0;
  // Decrypt `sealed`. Return false if the data have been tampered with; the contents of `out` are then undefined.
  virtual bool open(const CipherNonce& nonce, ConstBytes extra, ConstBytes sealed, const std::byte* tag, std::byte* out) = 0;
};

class CryptoLibrary {
 public:
  // Load a library. `path` is a file path, or a library name for dlopen(3). The library stays loaded until the process
  // exits.
  static Status load(const std::string& path, std::shared_ptr<const CryptoLibrary>* out);
  virtual ~CryptoLibrary() = default;

  // Return the ciphers that passed the self-test, starting with the fastest on this processor.
  std::vector<Cipher> ciphers() const;
  // Create a cipher that encrypts (`sealing`) or decrypts. Return null if the library lacks the cipher.
  virtual std::unique_ptr<Aead> make(Cipher cipher, const CipherKey& key, bool sealing) const = 0;
  // Diffie-Hellman on Curve25519 (RFC 7748): compute the public key of `secret`, or the key shared with the peer from `secret` and the
  // peer's public key. Both return false if the library fails, or if `remote` is not a point that an honest peer would send.
  virtual bool public_key(const CipherKey& secret, CipherKey* out) const = 0;
  virtual bool shared_key(const CipherKey& secret, const CipherKey& remote, CipherKey* out) const = 0;
  // Return true if the library's Diffie-Hellman passes its self-test.
  bool exchanges_keys() const;

 protected:
  CryptoLibrary() = default;
};

// Return a wrapper around a library opened by dlopen(3). Return null if `handle` is another library or too old a version.
std::unique_ptr<CryptoLibrary> openssl_library(void* handle);
std::unique_ptr<CryptoLibrary> sodium_library(void* handle);

}  // namespace hvd
