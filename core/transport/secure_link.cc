#include "transport/secure_link.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace hvd {
namespace {

void put_little_endian(uint64_t value, size_t bytes, unsigned char* out) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

CipherNonce numbered(uint64_t number) {
  CipherNonce nonce{};
  put_little_endian(number, sizeof number, nonce.data() + nonce.size() - sizeof number);
  return nonce;
}

}  // namespace

SecureLink::SecureLink(std::unique_ptr<Link> inner, std::shared_ptr<const CryptoLibrary> library, Cipher cipher, uint64_t records_per_key)
    : inner_(std::move(inner)), library_(std::move(library)), cipher_(cipher), records_per_key_(records_per_key),
      out_(std::make_unique_for_overwrite<std::byte[]>(kMaxText + kAround)), in_(std::make_unique_for_overwrite<std::byte[]>(kRoom)) {}

Status SecureLink::make(std::unique_ptr<Link> inner, std::shared_ptr<const CryptoLibrary> library, Cipher cipher, const Keys& keys,
                        std::unique_ptr<Link>* out, uint64_t records_per_key) {
  std::unique_ptr<SecureLink> made(new SecureLink(std::move(inner), std::move(library), cipher, records_per_key));
  if (!made->begin_key(&made->sending_, keys.send, true) || !made->begin_key(&made->receiving_, keys.receive, false)) {
    return Status(Code::invalid_argument, std::string("the library for encryption does not offer ") + name_of(cipher));
  }
  *out = std::move(made);
  return {};
}

// Start to use `key`, and derive the next key: encrypt zeros under a nonce that is never used for a record.
bool SecureLink::begin_key(Direction* direction, const CipherKey& key, bool sealing) const {
  direction->aead = library_->make(cipher_, key, sealing);
  const auto sealer = library_->make(cipher_, key, true);
  if (!direction->aead || !sealer) return false;
  const std::array<std::byte, sizeof(CipherKey)> zeros{};
  std::array<std::byte, kCipherTag> tag;
  direction->records = 0;
  auto* next = reinterpret_cast<std::byte*>(direction->next.data());
  return sealer->seal(numbered(std::numeric_limits<uint64_t>::max()), {}, zeros, next, tag.data());
}

bool SecureLink::nonce_of(Direction* direction, bool sealing, CipherNonce* nonce) const {
  if (direction->records == records_per_key_) {
    CipherKey key = direction->next;
    const bool good = begin_key(direction, key, sealing);
    wipe(key.data(), key.size());
    if (!good) return false;
  }
  *nonce = numbered(direction->records++);
  return true;
}

int64_t SecureLink::broken(Code code, std::string why) {
  if (error_.ok()) {
    error_ = Status(code, std::move(why));
    inner_->hang_up();
  }
  return -1;
}

bool SecureLink::seal(ConstBytes text) {
  CipherNonce nonce;
  if (!nonce_of(&sending_, true, &nonce)) return false;
  put_little_endian(text.size(), sizeof(Length), reinterpret_cast<unsigned char*>(out_.get()));
  std::byte* body = out_.get() + sizeof(Length);
  if (!sending_.aead->seal(nonce, {out_.get(), sizeof(Length)}, text, body, body + text.size())) return false;
  unsent_ = {out_.get(), text.size() + kAround};
  under_way_ = text.size();
  return true;
}

int64_t SecureLink::try_send(ConstBytes data) {
  if (data.empty()) return 0;
  if (!error_.ok()) return -1;
  size_t taken = 0;
  while (!unsent_.empty() || taken < data.size()) {
    const ConstBytes rest = data.subspan(taken);
    if (unsent_.empty() && !seal(rest.first(std::min(rest.size(), kMaxText)))) {
      return broken(Code::internal, "encryption failed");
    }
    if (rest.size() < under_way_)
      return broken(Code::internal, "a partly sent record must be sent again from its beginning, but fewer bytes were given");
    while (!unsent_.empty()) {
      const int64_t n = inner_->try_send(unsent_);
      if (n <= 0) return taken > 0 ? static_cast<int64_t>(taken) : n;
      unsent_ = unsent_.subspan(static_cast<size_t>(n));
    }
    taken += under_way_;
  }
  return static_cast<int64_t>(taken);
}

size_t SecureLink::hand_out(Bytes data) {
  const size_t n = std::min(data.size(), text_.size());
  std::memcpy(data.data(), text_.data(), n);
  text_ = text_.subspan(n);
  return n;
}

// True if the buffer has a whole record. The record's length is not authenticated yet, so it only serves to find the end.
bool SecureLink::whole_record(size_t* text) {
  const size_t held = in_end_ - in_begin_;
  *text = 0;
  if (held < sizeof(Length)) return false;
  const auto* p = reinterpret_cast<const unsigned char*>(in_.get() + in_begin_);
  for (size_t i = 0; i < sizeof(Length); ++i) *text |= size_t{p[i]} << (8 * i);
  if (*text == 0 || *text > kMaxText) {
    broken(Code::peer_lost, "its data are not encrypted as agreed: a record must have 1 to " + std::to_string(kMaxText) + " bytes, got " +
                                std::to_string(*text));
    return false;
  }
  return held >= *text + kAround;
}

// Decrypt a record directly to `data` if it fits. If not, decrypt it in place, and return the plaintext piece by piece.
bool SecureLink::open_record(size_t text, Bytes data) {
  CipherNonce nonce;
  std::byte* record = in_.get() + in_begin_;
  std::byte* body = record + sizeof(Length);
  std::byte* to = data.size() >= text ? data.data() : body;
  in_begin_ += text + kAround;
  if (!nonce_of(&receiving_, false, &nonce)) {
    broken(Code::internal, "decryption failed");
    return false;
  }
  if (!receiving_.aead->open(nonce, {record, sizeof(Length)}, {body, text}, body + text, to)) {
    std::memset(to, 0, text);
    broken(Code::peer_lost, "its data were altered, repeated or dropped on the way (a record's tag is wrong)");
    return false;
  }
  if (to == body) text_ = {body, text};
  return true;
}

// Receive more bytes. Request only bytes that are certain to arrive, because a sleeper might be woken only once all have arrived
// (Link::before_sleep): the rest of the current record or, between records, a record with `wanted` bytes of text, which the peer sends
// without waiting for an answer.
int64_t SecureLink::receive_more(size_t wanted) {
  if (in_begin_ > 0) {
    std::memmove(in_.get(), in_.get() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  size_t text = 0;
  whole_record(&text);
  const size_t sure = std::max(text, wanted) + kAround;
  const int64_t n = inner_->try_recv({in_.get() + in_end_, std::min(sure, kRoom) - in_end_});
  if (n > 0) in_end_ += static_cast<size_t>(n);
  return n;
}

int64_t SecureLink::try_recv(Bytes data) {
  if (data.empty()) return 0;
  size_t given = 0;
  while (given < data.size()) {
    const Bytes rest = data.subspan(given);
    size_t text = 0;
    if (!text_.empty()) {
      given += hand_out(rest);
    } else if (error_.ok() && whole_record(&text)) {
      if (!open_record(text, rest)) break;
      if (text_.empty()) given += text;
    } else {
      // The buffer holds no complete record now, so a caller that sleeps until more bytes arrive misses none.
      if (!error_.ok() || given > 0) break;
      const int64_t n = receive_more(rest.size());
      if (n <= 0) return n;
    }
  }
  return given > 0 ? static_cast<int64_t>(given) : -1;
}

}  // namespace hvd
