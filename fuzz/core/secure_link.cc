// Fuzz target for an encrypted link with arbitrary received bytes. Instead of a cipher, it uses a checksum that a
// fuzzer can solve, so that the code behind the authentication is also tested.
#include "transport/secure_link.h"

#include <array>
#include <vector>

#include "fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

class Sum final : public Aead {
 public:
  bool seal(const CipherNonce&, ConstBytes extra, ConstBytes text, std::byte* out, std::byte* tag) override {
    std::memmove(out, text.data(), text.size());
    std::fill_n(tag, kCipherTag, of(extra, {out, text.size()}));
    return true;
  }
  bool open(const CipherNonce&, ConstBytes extra, ConstBytes sealed, const std::byte* tag, std::byte* out) override {
    const std::byte sum = of(extra, sealed);
    std::memmove(out, sealed.data(), sealed.size());
    return *tag == sum;
  }

 private:
  static std::byte of(ConstBytes extra, ConstBytes text) {
    unsigned sum = 0;
    for (std::byte b : extra) sum += static_cast<unsigned>(b);
    for (std::byte b : text) sum += static_cast<unsigned>(b);
    return static_cast<std::byte>(sum & 3);
  }
};

class Sums final : public CryptoLibrary {
 public:
  std::unique_ptr<Aead> make(Cipher, const CipherKey&, bool) const override { return std::make_unique<Sum>(); }
  bool public_key(const CipherKey&, CipherKey*) const override { return false; }
  bool shared_key(const CipherKey&, const CipherKey&, CipherKey*) const override { return false; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto library = std::make_shared<const Sums>();
  if (size == 0) return 0;
  std::unique_ptr<Link> link;
  auto inner = std::make_unique<FeedLink>(ConstBytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1));
  require(SecureLink::make(std::move(inner), library, Cipher::aes_256_gcm, {}, &link, 3).ok());
  std::vector<std::byte> out(1 + data[0] * 300u);
  for (int64_t total = 0;;) {
    const int64_t n = link->try_recv(out);
    if (n <= 0) {
      require(n == 0 || !link->error().ok());
      break;
    }
    total += n;
    require(total < static_cast<int64_t>(size) && n <= static_cast<int64_t>(out.size()));
  }
  return 0;
}
