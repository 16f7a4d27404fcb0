// Python interface to the encryption libraries: the supported ciphers, and key agreement during connection setup.
#include "transport/crypto.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "glue.h"

namespace hvd::python {
namespace {

constexpr Cipher kCiphers[] = {Cipher::aes_256_gcm, Cipher::chacha20_poly1305};

std::shared_ptr<const CryptoLibrary> library_at(const std::string& path) {
  std::shared_ptr<const CryptoLibrary> library;
  check(CryptoLibrary::load(path, &library));
  return library;
}

nb::bytes handed_over(CipherKey& key) {
  nb::bytes out(key.data(), key.size());
  wipe(key.data(), key.size());
  return out;
}

}  // namespace

CipherKey cipher_key(const char* argument, const nb::bytes& value) {
  CipherKey key;
  if (value.size() != key.size()) {
    throw nb::value_error(
        (std::string(argument) + " must have " + std::to_string(key.size()) + " bytes, got " + std::to_string(value.size())).c_str());
  }
  std::memcpy(key.data(), value.c_str(), key.size());
  return key;
}

Status cipher_of(const std::string& name, Cipher* out) {
  for (Cipher cipher : kCiphers) {
    if (name != name_of(cipher)) continue;
    *out = cipher;
    return {};
  }
  return Status(Code::invalid_argument,
                std::string("cipher must be ") + name_of(kCiphers[0]) + " or " + name_of(kCiphers[1]) + ", got '" + name + "'");
}

void define_crypto(nb::module_& m) {
  using namespace nb::literals;
  m.def("ciphers", [](const std::string& library) {
    const auto loaded = library_at(library);
    std::vector<std::string> names;
    if (!loaded->exchanges_keys()) return names;
    for (Cipher cipher : loaded->ciphers()) names.emplace_back(name_of(cipher));
    return names;
  }, "library"_a);
  m.def("public_key", [](const std::string& library, const nb::bytes& secret) {
    CipherKey key = cipher_key("secret", secret), made;
    const bool good = library_at(library)->public_key(key, &made);
    wipe(key.data(), key.size());
    if (!good) throw nb::value_error("the encryption library cannot create keys");
    return handed_over(made);
  }, "library"_a, "secret"_a);
  m.def("shared_key", [](const std::string& library, const nb::bytes& secret, const nb::bytes& remote) {
    const CipherKey other = cipher_key("theirs", remote);
    CipherKey key = cipher_key("secret", secret), made;
    const bool good = library_at(library)->shared_key(key, other, &made);
    wipe(key.data(), key.size());
    if (!good) throw nb::value_error("theirs must be a valid public key");
    return handed_over(made);
  }, "library"_a, "secret"_a, "theirs"_a);
}

}  // namespace hvd::python
