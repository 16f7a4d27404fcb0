// Link decorator that encrypts all data, which are sent as a series of records.
//
// Each record contains the length of the plaintext (uint32, little-endian), the encrypted text, and a tag of 16 bytes
// that authenticates both.
//
// The n-th record of a direction has the nonce n, and each direction of each connection has a separate key. This detects records that are
// altered, repeated, dropped, reflected, or taken from other connections. After kRecordsPerKey records, a direction derives a new key from
// the previous one (REKEY of the Noise protocol, section 4.2). This limits the data encrypted with one key, and a leaked key does not
// decrypt earlier records. An eavesdropper still sees the lengths and times of records.
//
// A record's bytes are returned only after its tag has been verified. If verification fails, the link is permanently broken and the
// connection is closed, so that the peer does not wait for answers.
#pragma once
#include <memory>

#include "transport/crypto.h"
#include "transport/link.h"

namespace hvd {

class SecureLink final : public Link {
 public:
  // Maximum number of plaintext bytes in a record.
  static constexpr size_t kMaxText = 64 << 10;
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

  struct Keys {
    CipherKey send, receive;
  };
  // Create an encrypted link on top of `inner`. `records_per_key` is changed only by tests.
  static Status make(std::unique_ptr<Link> inner, std::shared_ptr<const CryptoLibrary> library, Cipher cipher, const Keys& keys,
                     std::unique_ptr<Link>* out, uint64_t records_per_key = kRecordsPerKey);

  // Send plaintext as encrypted records. The bytes of a record count as sent only once the whole record has been sent. Until then, the
  // caller must pass the same bytes again, possibly followed by more.
  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return error_.ok() ? inner_->error() : error_; }
  int fd() const override { return inner_->fd(); }
  short wanted() const override { return inner_->wanted(); }
  void before_sleep() override { inner_->before_sleep(); }
  void clear_wanted() override { inner_->clear_wanted(); }
  double unanswered() override { return inner_->unanswered(); }
  void hang_up() override { inner_->hang_up(); }

 private:
  using Length = uint32_t;
  static constexpr size_t kAround = sizeof(Length) + kCipherTag;
  // Size in bytes of the buffer for received data that are still encrypted.
  static constexpr size_t kRoom = 2 * (kMaxText + kAround);

  // One direction of the link, with its current key and the next one.
  struct Direction {
    std::unique_ptr<Aead> aead;
    CipherKey next{};
    uint64_t records = 0;
  };

  SecureLink(std::unique_ptr<Link> inner, std::shared_ptr<const CryptoLibrary> library, Cipher cipher, uint64_t records_per_key);
  bool begin_key(Direction* direction, const CipherKey& key, bool sealing) const;
  bool nonce_of(Direction* direction, bool sealing, CipherNonce* nonce) const;
  bool seal(ConstBytes text);
  int64_t broken(Code code, std::string why);
  size_t hand_out(Bytes data);
  bool whole_record(size_t* text);
  bool open_record(size_t text, Bytes data);
  int64_t receive_more(size_t wanted);

  std::unique_ptr<Link> inner_;
  std::shared_ptr<const CryptoLibrary> library_;
  Cipher cipher_;
  uint64_t records_per_key_;
  Direction sending_, receiving_;
  Status error_;

  // Memory of the record that is being sent.
  std::unique_ptr<std::byte[]> out_;
  // Part of the record that has not been sent.
  ConstBytes unsent_;
  // Number of plaintext bytes in the record that is being sent.
  size_t under_way_ = 0;

  std::unique_ptr<std::byte[]> in_;
  // Range [in_begin_, in_end_) of the receive buffer that is still encrypted.
  size_t in_begin_ = 0, in_end_ = 0;
  // Decrypted text before in_begin_ that try_recv() has not returned yet.
  Bytes text_;
};

}  // namespace hvd
