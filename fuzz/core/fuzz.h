// Common code for the fuzz targets. Each target defines LLVMFuzzerTestOneInput. Linked with libFuzzer, a target
// searches for inputs; linked with replay.cc, it runs the inputs of the corpus.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "transport/link.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hvd::fuzz {

// Link that receives the given bytes and then nothing more. It discards everything that is sent.
class FeedLink final : public Link {
 public:
  explicit FeedLink(ConstBytes data) : data_(data) {}
  int64_t try_send(ConstBytes data) override { return static_cast<int64_t>(data.size()); }
  int64_t try_recv(Bytes out) override {
    const size_t n = std::min(out.size(), data_.size());
    std::copy_n(data_.begin(), n, out.begin());
    data_ = data_.subspan(n);
    return static_cast<int64_t>(n);
  }
  const Status& error() const override { return none_; }

 private:
  ConstBytes data_;
  Status none_;
};

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace hvd::fuzz
