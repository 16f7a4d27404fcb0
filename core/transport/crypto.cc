#include "transport/crypto.h"

#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace hvd {
namespace {

constexpr Cipher kCiphers[] = {Cipher::aes_256_gcm, Cipher::chacha20_poly1305};

std::vector<std::byte> from_hex(std::string_view digits) {
  auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) out.push_back(static_cast<std::byte>(value(digits[i]) * 16 + value(digits[i + 1])));
  return out;
}

template <size_t n>
std::array<unsigned char, n> array_from_hex(std::string_view digits) {
  const auto bytes = from_hex(digits);
  std::array<unsigned char, n> out{};
  std::memcpy(out.data(), bytes.data(), std::min(n, bytes.size()));
  return out;
}

struct Example {
  std::string_view key, nonce, extra, text, sealed, tag;
};

// Test vectors: McGrew and Viega, "The Galois/Counter Mode of Operation", test case 16; RFC 8439, section 2.8.2.
constexpr Example kExamples[] = {
    {"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
     "feedfacedeadbeeffeedfacedeadbeefabaddad2",
     "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
     "76fc6ece0f4e1768cddf8853bb2d551b"},
    {"808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7",
     "4c616469657320616e642047656e746c656d656e206f662074686520636c617373206f66202739393a204966204920636f756c64206f66666572"
     "20796f75206f6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73637265656e20776f756c642062652069742e",
     "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6"
     "a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9de576d26586cec64b6116",
     "1ae10b594f09e26a7e902ecbd0600691"},
};

bool keeps(const CryptoLibrary& library, Cipher cipher) {
  const Example& example = kExamples[static_cast<size_t>(cipher)];
  const auto key = array_from_hex<32>(example.key);
  const auto nonce = array_from_hex<12>(example.nonce);
  const auto extra = from_hex(example.extra), text = from_hex(example.text), sealed = from_hex(example.sealed), tag = from_hex(example.tag);
  const auto sealer = library.make(cipher, key, true), opener = library.make(cipher, key, false);
  if (!sealer || !opener) return false;
  std::vector<std::byte> out(text.size()), back(text.size()), mark(kCipherTag);
  // Run each test twice, because a key must also work when it is used again.
  for (int round = 0; round < 2; ++round) {
    if (!sealer->seal(nonce, extra, text, out.data(), mark.data()) || out != sealed || mark != tag) return false;
    if (!opener->open(nonce, extra, out, mark.data(), back.data()) || back != text) return false;
    mark[0] ^= std::byte{1};
    if (opener->open(nonce, extra, out, mark.data(), back.data())) return false;
  }
  return true;
}

}  // namespace

const char* name_of(Cipher cipher) { return cipher == Cipher::aes_256_gcm ? "aes-256-gcm" : "chacha20-poly1305"; }

bool processor_has_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  // Values of HWCAP_AES and HWCAP_PMULL.
  constexpr unsigned long kAes = 1 << 3, kPmull = 1 << 4;
  return (getauxval(AT_HWCAP) & (kAes | kPmull)) == (kAes | kPmull);
#else
  return false;
#endif
}

void wipe(void* data, size_t bytes) { explicit_bzero(data, bytes); }

Status CryptoLibrary::load(const std::string& path, std::shared_ptr<const CryptoLibrary>* out) {
  // Never unload the library, because OpenSSL registers exit handlers.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle) {
    const char* why = ::dlerror();
    return Status(Code::invalid_argument, "the library '" + path + "' cannot be loaded: " + (why ? why : "no reason given"));
  }
  std::unique_ptr<CryptoLibrary> made = openssl_library(handle);
  if (!made) made = sodium_library(handle);
  if (!made) {
    return Status(Code::invalid_argument,
                  "the library '" + path + "' must be OpenSSL's libcrypto (1.1.1 or newer) or libsodium, but it lacks functions of both");
  }
  *out = std::move(made);
  return {};
}

std::vector<Cipher> CryptoLibrary::ciphers() const {
  std::vector<Cipher> out;
  for (Cipher cipher : kCiphers) {
    if (keeps(*this, cipher)) out.push_back(cipher);
  }
  if (out.size() == 2 && !processor_has_aes()) std::swap(out[0], out[1]);
  return out;
}

// Use the test vectors of RFC 7748, section 6.1.
bool CryptoLibrary::exchanges_keys() const {
  const auto alice = array_from_hex<32>("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
  const auto bob_public = array_from_hex<32>("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
  CipherKey made{}, shared{};
  return public_key(alice, &made) && made == array_from_hex<32>("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a") &&
         shared_key(alice, bob_public, &shared) &&
         shared == array_from_hex<32>("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
}

}  // namespace hvd
