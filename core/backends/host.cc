#include "backends/host.h"

#include <cstring>

#include "backends/contiguous.h"
#include "collectives/collectives.h"

namespace hvd {
namespace {

WorldShape shape_of(const Comm& c) {
  WorldShape w;
  w.size = c.size;
  w.all_local = c.node != nullptr;
  w.links = c.node == nullptr;
  w.nested = c.local != nullptr;
  // The cost model distinguishes only between one host and several, so any number above 1 stands for several.
  w.hosts = w.all_local ? 1 : 2;
  w.power_of_two = (c.size & (c.size - 1)) == 0;
  return w;
}

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Overrides overrides) : overrides_(overrides) {}
  const char* name() const override { return "host"; }

  std::string_view algorithm(const Comm& c, Collective collective, DType d, WireFormat wire, size_t bytes) const override {
    if (c.size == 1) return "none";
    if (wire != WireFormat::none) return c.local ? "compressed_hierarchical" : "compressed";
    return name_of(pick(collective, c, d, bytes));
  }

  Status allreduce(Comm& c, const Segments& s, DType d, ReduceOp op, const Scale& scale) override {
    if (c.size == 1) return alone(s, d, scale);
    if (op == ReduceOp::adasum) return allreduce_adasum(c, s, d, scale);
    const Algorithm algorithm = pick(Collective::allreduce, c, d, s.total * size_of(d));
    if (algorithm == Algorithm::shm) return allreduce_shm(c, s, d, op, scale);
    std::byte* data = pack(c, s, d);
    HVD_RETURN_IF_ERROR(implementation(kAllreduces, algorithm)(c, data, s.total, d, op));
    unpack(s, d, data, scale);
    return {};
  }

  bool stage_allreduce(Comm& c, const Segments& s, DType d) override {
    return c.node && pick(Collective::allreduce, c, d, s.total * size_of(d)) == Algorithm::shm && stage_allreduce_shm(c, s, d);
  }

  // Use one algorithm for every size, because rounding must not depend on fusion.
  Status allreduce_compressed(Comm& c, const Segments& s, std::span<float* const> residuals, WireFormat format,
                              const Scale& scale) override {
    if (c.size == 1) return alone(s, DType::float32, scale);
    return c.local ? allreduce_compressed_hierarchical(c, s, residuals, format, scale)
                   : hvd::allreduce_compressed(c, s, residuals, format, scale);
  }

  bool may_be_guarded(const Comm& c, size_t count, DType d) const override {
    // Maximum size in bytes for which recursive doubling, the algorithm of a guarded allreduce, may replace the algorithm from the table.
    // It sends all data log2(P) times, while other algorithms send them about twice, but up to this size its low latency outweighs that.
    // Measured on links of 1 to 10 Gbit/s.
    constexpr size_t kMax = 32u << 10;
    const size_t bytes = count * size_of(d);
    if (bytes > kMax || c.node || c.local) return false;
    const Algorithm algorithm = pick(Collective::allreduce, c, d, bytes);
    if (algorithm == Algorithm::recursive_doubling) return true;
    // An algorithm that the user has chosen is never replaced.
    return !overrides_.wanted[static_cast<size_t>(Collective::allreduce)] && order_of(Collective::allreduce, algorithm) == Order::the_order;
  }

  Status broadcast(Comm& c, std::byte* data, size_t bytes, int root) override {
    if (c.size == 1) return {};
    return implementation(kBroadcasts, pick(Collective::broadcast, c, DType::uint8, bytes))(c, data, bytes, root);
  }

  Status allgather(Comm& c, const std::byte* in, std::byte* out, std::span<const size_t> bytes) override {
    if (c.size == 1) return copy(in, out, bytes[0]);
    return implementation(kAllgathers, pick(Collective::allgather, c))(c, in, out, bytes);
  }

  Status alltoall(Comm& c, const std::byte* in, std::span<const size_t> send, std::byte* out, std::span<const size_t> recv) override {
    if (c.size == 1) return copy(in, out, send[0]);
    return implementation(kAlltoalls, pick(Collective::alltoall, c))(c, in, send, out, recv);
  }

  Status reducescatter(Comm& c, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType d, ReduceOp op,
                       const Scale& scale) override {
    if (c.size == 1) {
      HVD_RETURN_IF_ERROR(copy(in, out, counts[0] * size_of(d)));
      if (!scale.identity()) hvd::scale(d, out, out, counts[0], scale);
      return {};
    }
    return implementation(kReducescatters, pick(Collective::reducescatter, c, d))(c, in, out, counts, d, op, scale);
  }

  Status barrier(Comm& c) override {
    if (c.size == 1) return {};
    return implementation(kBarriers, pick(Collective::barrier, c))(c);
  }

 private:
  // Choose the algorithm of a collective. `bytes` is 0 if the choice does not depend on the size.
  Algorithm pick(Collective collective, const Comm& c, DType d = DType::uint8, size_t bytes = 0) const {
    return select(collective, d, bytes, shape_of(c), overrides_, c.tuning);
  }

  static Status copy(const std::byte* in, std::byte* out, size_t bytes) {
    if (in != out && bytes) std::memcpy(out, in, bytes);
    return {};
  }

  static Status alone(const Segments& s, DType d, const Scale& scale) {
    for (const auto& p : s.pieces) {
      if (!p.in || !p.out) continue;
      HVD_RETURN_IF_ERROR(copy(p.in, p.out, p.count * size_of(d)));
      if (!scale.identity()) hvd::scale(d, p.out, p.out, p.count, scale);
    }
    return {};
  }

  Overrides overrides_;
};

}  // namespace

Status make_host_backend(const std::string& override_text, std::unique_ptr<Backend>* out) {
  Overrides overrides;
  HVD_RETURN_IF_ERROR(Overrides::parse(override_text, &overrides));
  *out = std::make_unique<HostBackend>(overrides);
  return {};
}

}  // namespace hvd
