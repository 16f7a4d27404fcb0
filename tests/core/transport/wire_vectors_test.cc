// Encrypted connections byte by byte (docs/wire.md), compared with published examples from an independent
// implementation.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "../collectives/harness_links.h"
#include "../encrypted.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr uint64_t kRecordsPerKey = 2;  // in the examples
constexpr int kRecords = 5;

using Section = std::map<std::string, std::vector<std::byte>>;

std::vector<std::byte> bytes_of(const std::string& digits) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) out.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return out;
}

// Sections by the names in brackets.
std::map<std::string, Section> examples() {
  std::map<std::string, Section> out;
  std::ifstream file(HVD_TEST_VECTORS);
  std::string line, section;
  while (std::getline(file, line)) {
    const size_t equals = line.find(" = ");
    if (!line.empty() && line[0] == '[') section = line.substr(1, line.find(']') - 1);
    if (equals != std::string::npos) out[section][line.substr(0, equals)] = bytes_of(line.substr(equals + 3));
  }
  return out;
}

CipherKey key_of(const std::vector<std::byte>& bytes) {
  CipherKey key{};
  REQUIRE(bytes.size() == key.size());
  std::memcpy(key.data(), bytes.data(), key.size());
  return key;
}

// Accepts all data, and returns given data.
class TrayLink final : public Link {
 public:
  explicit TrayLink(std::vector<std::byte>* tray) : tray_(tray) {}
  int64_t try_send(ConstBytes data) override {
    tray_->insert(tray_->end(), data.begin(), data.end());
    return static_cast<int64_t>(data.size());
  }
  int64_t try_recv(Bytes data) override {
    const size_t n = std::min(data.size(), tray_->size());
    std::copy_n(tray_->begin(), n, data.begin());
    tray_->erase(tray_->begin(), tray_->begin() + static_cast<ptrdiff_t>(n));
    return static_cast<int64_t>(n);
  }
  const Status& error() const override { return none_; }

 private:
  std::vector<std::byte>* tray_;
  Status none_;
};

std::unique_ptr<Link> link_over(std::vector<std::byte>* tray, const Library& library, Cipher cipher, const CipherKey& key) {
  std::unique_ptr<Link> out;
  REQUIRE(SecureLink::make(std::make_unique<TrayLink>(tray), library, cipher, {key, key}, &out, kRecordsPerKey).ok());
  return out;
}

}  // namespace

TEST_CASE("records are those of the published examples, with every library and cipher") {
  const auto known = examples();
  for (const Library& library : crypto_libraries()) {
    for (Cipher cipher : library->ciphers()) {
      CAPTURE(name_of(cipher));
      const Section& section = known.at(std::string("records ") + name_of(cipher));
      const CipherKey key = key_of(section.at("key"));
      std::vector<std::byte> sent, come;
      const auto sender = link_over(&sent, library, cipher, key), receiver = link_over(&come, library, cipher, key);
      for (int i = 0; i < kRecords; ++i) {
        const auto& text = section.at("text_" + std::to_string(i));
        const auto& record = section.at("record_" + std::to_string(i));
        REQUIRE(sender->try_send(text) == static_cast<int64_t>(text.size()));
        CHECK(sent == record);
        sent.clear();
        come = record;
        std::vector<std::byte> got(text.size());
        REQUIRE(receiver->try_recv(got) == static_cast<int64_t>(got.size()));
        CHECK(got == text);
      }
    }
  }
}

TEST_CASE("key pairs agree on the secret of the published examples") {
  const auto known = examples();
  const Section& job = known.at("job");
  for (const Library& library : crypto_libraries()) {
    for (const char* cipher : {"aes-256-gcm", "chacha20-poly1305"}) {
      const Section& section = known.at(std::string("handshake ") + cipher);
      CipherKey derived{}, shared{};
      REQUIRE(library->public_key(key_of(job.at("connector_secret")), &derived));
      CHECK(derived == key_of(section.at("connector_nonce")));
      REQUIRE(library->shared_key(key_of(job.at("acceptor_secret")), derived, &shared));
      CHECK(shared == key_of(section.at("shared_secret")));
    }
  }
}
