// Helpers for tests of encrypted links: the libraries of this system, and a pair of ends with matching keys.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/secure_link.h"

namespace hvd::testing {

using Library = std::shared_ptr<const CryptoLibrary>;

// By the file names that distributions use. python3, git and ssh need OpenSSL's, so at least that one exists.
inline std::vector<Library> crypto_libraries() {
  std::vector<Library> found;
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libsodium.so.26", "libsodium.so.23"}) {
    Library library;
    if (CryptoLibrary::load(name, &library).ok()) found.push_back(library);
  }
  if (found.empty()) throw std::runtime_error("neither OpenSSL's libcrypto nor libsodium is installed");
  return found;
}

inline CipherKey key_of(int from, int to) {
  CipherKey key;
  for (size_t i = 0; i < key.size(); ++i)
    key[i] = static_cast<unsigned char>(7 * i + 31 * static_cast<size_t>(from) + static_cast<size_t>(to));
  return key;
}

// Rank `mine`'s end of its connection to `theirs`.
inline std::unique_ptr<Link> encrypted(std::unique_ptr<Link> inner, const Library& library, Cipher cipher, int own, int peer,
                                       uint64_t records_per_key = SecureLink::kRecordsPerKey) {
  std::unique_ptr<Link> link;
  const Status status = SecureLink::make(std::move(inner), library, cipher, {key_of(own, peer), key_of(peer, own)}, &link, records_per_key);
  if (!status.ok()) throw std::runtime_error(status.message());
  return link;
}

}  // namespace hvd::testing
