// Wrapper around OpenSSL's libcrypto. The prototypes follow its manual pages: EVP_EncryptInit(3), EVP_PKEY_new(3),
// EVP_PKEY_derive(3).
#include "transport/crypto.h"
#include "transport/crypto_symbols.h"

namespace hvd {
namespace {

// Values of EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG.
constexpr int kGetTag = 0x10, kSetTag = 0x11;
// Value of EVP_PKEY_X25519.
constexpr int kX25519 = 1034;

struct OpensslFunctions {
  using Opaque = void;
  Opaque* (*cipher_ctx_new)() = nullptr;
  void (*cipher_ctx_free)(Opaque*) = nullptr;
  int (*cipher_init)(Opaque* ctx, const Opaque* cipher, Opaque* engine, const unsigned char* key, const unsigned char* iv,
                     int seal) = nullptr;
  int (*cipher_update)(Opaque* ctx, unsigned char* out, int* out_bytes, const unsigned char* in, int in_bytes) = nullptr;
  int (*cipher_final)(Opaque* ctx, unsigned char* out, int* out_bytes) = nullptr;
  int (*cipher_ctrl)(Opaque* ctx, int what, int bytes, void* data) = nullptr;
  void (*clear_error)() = nullptr;
  Opaque* (*new_private)(int type, Opaque* engine, const unsigned char* key, size_t bytes) = nullptr;
  Opaque* (*new_public)(int type, Opaque* engine, const unsigned char* key, size_t bytes) = nullptr;
  int (*get_public)(const Opaque* pkey, unsigned char* out, size_t* bytes) = nullptr;
  void (*pkey_free)(Opaque*) = nullptr;
  Opaque* (*pkey_ctx_new)(Opaque* pkey, Opaque* engine) = nullptr;
  void (*pkey_ctx_free)(Opaque*) = nullptr;
  int (*derive_init)(Opaque* ctx) = nullptr;
  int (*derive_set_peer)(Opaque* ctx, Opaque* pkey) = nullptr;
  int (*derive)(Opaque* ctx, unsigned char* out, size_t* bytes) = nullptr;
  // Constructor function of each Cipher. Null if the library lacks the cipher.
  const Opaque* (*cipher[2])() = {nullptr, nullptr};

  bool load(void* handle);
};

bool OpensslFunctions::load(void* handle) {
  find_symbol(handle, "EVP_aes_256_gcm", &cipher[static_cast<int>(Cipher::aes_256_gcm)]);
  find_symbol(handle, "EVP_chacha20_poly1305", &cipher[static_cast<int>(Cipher::chacha20_poly1305)]);
  return find_symbol(handle, "EVP_CIPHER_CTX_new", &cipher_ctx_new) && find_symbol(handle, "EVP_CIPHER_CTX_free", &cipher_ctx_free) &&
         find_symbol(handle, "EVP_CipherInit_ex", &cipher_init) && find_symbol(handle, "EVP_CipherUpdate", &cipher_update) &&
         find_symbol(handle, "EVP_CipherFinal_ex", &cipher_final) && find_symbol(handle, "EVP_CIPHER_CTX_ctrl", &cipher_ctrl) &&
         find_symbol(handle, "ERR_clear_error", &clear_error) && find_symbol(handle, "EVP_PKEY_new_raw_private_key", &new_private) &&
         find_symbol(handle, "EVP_PKEY_new_raw_public_key", &new_public) &&
         find_symbol(handle, "EVP_PKEY_get_raw_public_key", &get_public) && find_symbol(handle, "EVP_PKEY_free", &pkey_free) &&
         find_symbol(handle, "EVP_PKEY_CTX_new", &pkey_ctx_new) && find_symbol(handle, "EVP_PKEY_CTX_free", &pkey_ctx_free) &&
         find_symbol(handle, "EVP_PKEY_derive_init", &derive_init) && find_symbol(handle, "EVP_PKEY_derive_set_peer", &derive_set_peer) &&
         find_symbol(handle, "EVP_PKEY_derive", &derive);
}

class OpensslAead final : public Aead {
 public:
  OpensslAead(const OpensslFunctions& f, void* ctx) : f_(f), ctx_(ctx) {}
  ~OpensslAead() override { f_.cipher_ctx_free(ctx_); }
  OpensslAead(const OpensslAead&) = delete;

  bool seal(const CipherNonce& nonce, ConstBytes extra, ConstBytes text, std::byte* out, std::byte* tag) override {
    return checked(run(nonce, extra, text, out, nullptr) && f_.cipher_ctrl(ctx_, kGetTag, kCipherTag, tag) == 1);
  }
  bool open(const CipherNonce& nonce, ConstBytes extra, ConstBytes sealed, const std::byte* tag, std::byte* out) override {
    return checked(run(nonce, extra, sealed, out, tag));
  }

 private:
  bool run(const CipherNonce& nonce, ConstBytes extra, ConstBytes in, std::byte* out, const std::byte* tag) {
    constexpr int kAsBefore = -1;
    int done = 0, rest = 0;
    if (f_.cipher_init(ctx_, nullptr, nullptr, nullptr, nonce.data(), kAsBefore) != 1) return false;
    if (tag && f_.cipher_ctrl(ctx_, kSetTag, kCipherTag, const_cast<std::byte*>(tag)) != 1) return false;
    if (!extra.empty() && f_.cipher_update(ctx_, nullptr, &done, raw(extra.data()), static_cast<int>(extra.size())) != 1) return false;
    if (f_.cipher_update(ctx_, raw(out), &done, raw(in.data()), static_cast<int>(in.size())) != 1) return false;
    return f_.cipher_final(ctx_, raw(out) + done, &rest) == 1;
  }
  // Clear OpenSSL's errors after a failure. The error queue belongs to the thread, so other users of OpenSSL on this
  // thread would mistake these errors for their own.
  bool checked(bool good) {
    if (!good) f_.clear_error();
    return good;
  }

  const OpensslFunctions& f_;
  void* ctx_;
};

class Openssl final : public CryptoLibrary {
 public:
  explicit Openssl(const OpensslFunctions& f) : f_(f) {}

  std::unique_ptr<Aead> make(Cipher cipher, const CipherKey& key, bool sealing) const override {
    const auto method = f_.cipher[static_cast<int>(cipher)];
    void* ctx = method ? f_.cipher_ctx_new() : nullptr;
    if (!ctx) return nullptr;
    auto made = std::make_unique<OpensslAead>(f_, ctx);
    if (f_.cipher_init(ctx, method(), nullptr, key.data(), nullptr, sealing ? 1 : 0) == 1) return made;
    f_.clear_error();
    return nullptr;
  }

  bool public_key(const CipherKey& secret, CipherKey* out) const override {
    void* own = f_.new_private(kX25519, nullptr, secret.data(), secret.size());
    size_t bytes = out->size();
    const bool good = own && f_.get_public(own, out->data(), &bytes) == 1 && bytes == out->size();
    f_.pkey_free(own);
    if (!good) f_.clear_error();
    return good;
  }

  bool shared_key(const CipherKey& secret, const CipherKey& remote, CipherKey* out) const override {
    void* own = f_.new_private(kX25519, nullptr, secret.data(), secret.size());
    void* peer = f_.new_public(kX25519, nullptr, remote.data(), remote.size());
    void* ctx = own ? f_.pkey_ctx_new(own, nullptr) : nullptr;
    size_t bytes = out->size();
    const bool good = ctx && peer && f_.derive_init(ctx) == 1 && f_.derive_set_peer(ctx, peer) == 1 &&
                      f_.derive(ctx, out->data(), &bytes) == 1 && bytes == out->size();
    f_.pkey_ctx_free(ctx);
    f_.pkey_free(peer);
    f_.pkey_free(own);
    if (!good) f_.clear_error();
    return good;
  }

 private:
  OpensslFunctions f_;
};

}  // namespace

std::unique_ptr<CryptoLibrary> openssl_library(void* handle) {
  OpensslFunctions functions;
  return functions.load(handle) ? std::make_unique<Openssl>(functions) : nullptr;
}

}  // namespace hvd
