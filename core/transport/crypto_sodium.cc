// Wrapper around libsodium. The prototypes follow its documentation: aead/aes-256-gcm, aead/chacha20-poly1305,
// advanced/scalar_multiplication.
#include <algorithm>
#include <new>

#include "transport/crypto.h"
#include "transport/crypto_symbols.h"

namespace hvd {
namespace {

using U8 = unsigned char;
using Length = unsigned long long;
// Signatures of libsodium's functions for encryption and decryption. `k` is the key or, for AES, the state that beforenm() derived from it.
using Seal = int (*)(U8* c, U8* mac, Length* mac_bytes, const U8* m, Length m_bytes, const U8* ad, Length ad_bytes, const U8* nsec,
                     const U8* nonce, const U8* k);
using Open = int (*)(U8* m, U8* nsec, const U8* c, Length c_bytes, const U8* mac, const U8* ad, Length ad_bytes, const U8* nonce,
                     const U8* k);

struct SodiumFunctions {
  int (*init)() = nullptr;
  int (*aes_is_there)() = nullptr;
  size_t (*aes_state_bytes)() = nullptr;
  int (*aes_prepare)(U8* state, const U8* key) = nullptr;
  Seal aes_seal = nullptr, chacha_seal = nullptr;
  Open aes_open = nullptr, chacha_open = nullptr;
  int (*public_key)(U8* q, const U8* n) = nullptr;
  int (*shared_key)(U8* q, const U8* n, const U8* p) = nullptr;

  bool load(void* handle);
};

bool SodiumFunctions::load(void* handle) {
  return find_symbol(handle, "sodium_init", &init) && find_symbol(handle, "crypto_aead_aes256gcm_is_available", &aes_is_there) &&
         find_symbol(handle, "crypto_aead_aes256gcm_statebytes", &aes_state_bytes) &&
         find_symbol(handle, "crypto_aead_aes256gcm_beforenm", &aes_prepare) &&
         find_symbol(handle, "crypto_aead_aes256gcm_encrypt_detached_afternm", &aes_seal) &&
         find_symbol(handle, "crypto_aead_aes256gcm_decrypt_detached_afternm", &aes_open) &&
         find_symbol(handle, "crypto_aead_chacha20poly1305_ietf_encrypt_detached", &chacha_seal) &&
         find_symbol(handle, "crypto_aead_chacha20poly1305_ietf_decrypt_detached", &chacha_open) &&
         find_symbol(handle, "crypto_scalarmult_base", &public_key) && find_symbol(handle, "crypto_scalarmult", &shared_key) && init() >= 0;
}

class SodiumAead final : public Aead {
 public:
  static constexpr std::align_val_t kAlign{64};

  // Take ownership of `state`, an allocation of `bytes` bytes with the alignment kAlign.
  SodiumAead(Seal seal, Open open, U8* state, size_t bytes) : seal_(seal), open_(open), state_(state), bytes_(bytes) {}
  ~SodiumAead() override {
    wipe(state_, bytes_);
    ::operator delete(state_, kAlign);
  }
  SodiumAead(const SodiumAead&) = delete;

  bool seal(const CipherNonce& nonce, ConstBytes extra, ConstBytes text, std::byte* out, std::byte* tag) override {
    Length bytes = 0;
    return seal_(raw(out), raw(tag), &bytes, raw(text.data()), text.size(), raw(extra.data()), extra.size(), nullptr, nonce.data(),
                 state_) == 0;
  }
  bool open(const CipherNonce& nonce, ConstBytes extra, ConstBytes sealed, const std::byte* tag, std::byte* out) override {
    return open_(raw(out), nullptr, raw(sealed.data()), sealed.size(), raw(tag), raw(extra.data()), extra.size(), nonce.data(), state_) ==
           0;
  }

 private:
  Seal seal_;
  Open open_;
  U8* state_;
  size_t bytes_;
};

class Sodium final : public CryptoLibrary {
 public:
  explicit Sodium(const SodiumFunctions& f) : f_(f) {}

  std::unique_ptr<Aead> make(Cipher cipher, const CipherKey& key, bool) const override {
    const bool aes = cipher == Cipher::aes_256_gcm;
    // libsodium has AES only if the processor has AES instructions.
    if (aes && f_.aes_is_there() == 0) return nullptr;
    const size_t bytes = aes ? f_.aes_state_bytes() : key.size();
    auto* state = static_cast<U8*>(::operator new(bytes, SodiumAead::kAlign));
    if (!aes) std::copy(key.begin(), key.end(), state);
    auto made = std::make_unique<SodiumAead>(aes ? f_.aes_seal : f_.chacha_seal, aes ? f_.aes_open : f_.chacha_open, state, bytes);
    if (aes && f_.aes_prepare(state, key.data()) != 0) return nullptr;
    return made;
  }
  bool public_key(const CipherKey& secret, CipherKey* out) const override { return f_.public_key(out->data(), secret.data()) == 0; }
  bool shared_key(const CipherKey& secret, const CipherKey& remote, CipherKey* out) const override {
    return f_.shared_key(out->data(), secret.data(), remote.data()) == 0;
  }

 private:
  SodiumFunctions f_;
};

}  // namespace

std::unique_ptr<CryptoLibrary> sodium_library(void* handle) {
  SodiumFunctions functions;
  return functions.load(handle) ? std::make_unique<Sodium>(functions) : nullptr;
}

}  // namespace hvd
