// Allreduce of float32 sums with a compressed encoding (collectives/codec.h): a direct reduce-scatter, then a direct
// allgather, as in allreduce_pairwise. Every rank encodes its contribution and sends each slice to the rank that owns
// it. The owner decodes all contributions to its slice, including its own, and adds them in float32 in the canonical
// order. It scales the sum and encodes the result once. Every rank, including the owner, decodes that result. Each
// value is then rounded twice for any number of ranks, and all ranks get equal bits because they decode the same bytes.
// A ring would have to decode, add and encode at every hop.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): 2 (P-1) * alpha + 2 (P-1)/P * c N * beta, plus the time for
// encoding and decoding. c is 1/2 for fp16 and bf16, and 65/256 for int8. The latencies (alpha) overlap.
//
// Error feedback: compression loses precision. The quantization error of a rank's contribution stays in its residual
// and is added to its next contribution. The quantization error of the result goes to the residual of the rank that
// owns the slice, after the result's scaling is undone. No value is lost: the sum of all results and residuals equals
// the sum of all contributions, up to float32 rounding. Infinities and NaNs are not kept in residuals. Sources:
// F. Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of
// speech DNNs", Interspeech 2014; S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient
// compression schemes", ICML 2019. For feedback in both directions: H. Tang et al., "DoubleSqueeze: parallel stochastic
// gradient descent with double-pass error-compensated compression", ICML 2019.
#include <cmath>
#include <cstring>

#include "collectives/codec.h"
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

namespace {

float finite(float x) { return std::isfinite(x) ? x : 0.0f; }

class CodedAllreduce {
 public:
  CodedAllreduce(Comm& comm, std::span<const CodedRun> runs, WireFormat format, const Scale& scale)
      : comm_(comm), runs_(runs), format_(format), scale_(scale), parts_{format, n()},
        bytes_(reinterpret_cast<size_t*>(comm.scratch->get(kSlotCodedCounts, 2 * n() * sizeof(size_t))), n()),
        own_sizes_(bytes_.data() + n(), n()) {
    for (size_t i = 0; i < n(); ++i) {
      bytes_[i] = 0;
      for (const CodedRun& run : runs_) bytes_[i] += coded_bytes(format_, parts_.of(run, i).count);
      total_ += bytes_[i];
      if (i < static_cast<size_t>(comm_.rank)) before_ += bytes_[i];
    }
    for (size_t& m : own_sizes_) m = bytes_[comm_.rank];
  }

  Status run() {
    if (total_ == 0) return {};
    std::byte* coded = comm_.scratch->get(kSlotCoded, total_);
    std::byte* remote = comm_.scratch->get(kSlotCodedTheirs, n() * own_sizes_[0]);
    contribute(coded);
    HVD_RETURN_IF_ERROR(comm_.node ? alltoall_shm(comm_, coded, bytes_, remote, own_sizes_)
                                   : alltoall_pairwise(comm_, coded, bytes_, remote, own_sizes_));
    reduce(remote, coded + before_);
    HVD_RETURN_IF_ERROR(gather(coded));
    take_out(coded);
    return {};
  }

 private:
  size_t n() const { return static_cast<size_t>(comm_.size); }

  // Encode this rank's contribution: for each rank in turn, that rank's part of every tensor.
  void contribute(std::byte* coded) const {
    for (size_t i = 0; i < n(); ++i) {
      for (const CodedRun& run : runs_) {
        const CodedRun part = parts_.of(run, i);
        in_steps(part.count, [&](size_t at, size_t some) { encode_step(part, at, some, coded + coded_bytes(format_, at)); });
        coded += coded_bytes(format_, part.count);
      }
    }
  }

  void encode_step(const CodedRun& part, size_t at, size_t some, std::byte* to) const {
    alignas(64) float values[kCodedStep], back[kCodedStep];
    load_contribution(part, at, some, values);
    encode_floats(format_, to, values, some);
    if (!part.residual) return;
    decode_floats(format_, back, to, some);
    for (size_t i = 0; i < some; ++i) values[i] = finite(values[i] - back[i]);
    std::memcpy(part.residual + at * sizeof(float), values, some * sizeof(float));
  }

  // Reduce all contributions to this rank's slice and encode the result.
  void reduce(const std::byte* remote, std::byte* coded) const {
    auto* floats = reinterpret_cast<float*>(comm_.scratch->get(kSlotCodedFloats, n() * kCodedStep * sizeof(float)));
    auto* sources = reinterpret_cast<const std::byte**>(comm_.scratch->get(kSlotSources, n() * sizeof(std::byte*)));
    for (size_t r = 0; r < n(); ++r) sources[r] = reinterpret_cast<const std::byte*>(floats + r * kCodedStep);
    for (const CodedRun& run : runs_) {
      const CodedRun part = parts_.of(run, static_cast<size_t>(comm_.rank));
      in_steps(part.count, [&](size_t at, size_t some) {
        const size_t offset = coded_bytes(format_, at);
        for (size_t r = 0; r < n(); ++r) decode_floats(format_, floats + r * kCodedStep, remote + r * own_sizes_[0] + offset, some);
        alignas(64) float sum[kCodedStep];
        reduce_many(DType::float32, ReduceOp::sum, reinterpret_cast<std::byte*>(sum), {sources, n()}, some, scale_);
        encode_floats(format_, coded + offset, sum, some);
        if (part.residual) keep_rest(part, at, some, sum, coded + offset);
      });
      remote += coded_bytes(format_, part.count);
      coded += coded_bytes(format_, part.count);
    }
  }

  // Add the quantization error of the result to the residual, without the result's scaling, because residuals are added to contributions.
  void keep_rest(const CodedRun& part, size_t at, size_t some, const float* sum, const std::byte* coded) const {
    const double unit = static_cast<double>(scale_.divisor) / scale_.factor;
    if (!std::isfinite(unit)) return;
    alignas(64) float back[kCodedStep], kept[kCodedStep];
    decode_floats(format_, back, coded, some);
    std::byte* residual = part.residual + at * sizeof(float);
    std::memcpy(kept, residual, some * sizeof(float));
    for (size_t i = 0; i < some; ++i) kept[i] = finite(kept[i] + (sum[i] - back[i]) * static_cast<float>(unit));
    std::memcpy(residual, kept, some * sizeof(float));
  }

  Status gather(std::byte* coded) {
    const std::byte* own = coded + before_;
    if (comm_.node) return allgather_shm(comm_, own, coded, bytes_);
    auto part = [&](int i) {
      size_t first = 0;
      for (int r = 0; r < i; ++r) first += bytes_[r];
      return Bytes(coded + first, bytes_[i]);
    };
    return with_every_peer(comm_, [&](int peer) { return Transfer{peer, ConstBytes(own, own_sizes_[0]), part(peer)}; });
  }

  void take_out(const std::byte* coded) const {
    for (size_t i = 0; i < n(); ++i) {
      for (const CodedRun& run : runs_) {
        const CodedRun part = parts_.of(run, i);
        in_steps(part.out ? part.count : 0, [&](size_t at, size_t some) {
          alignas(64) float values[kCodedStep];
          decode_floats(format_, values, coded + coded_bytes(format_, at), some);
          std::memcpy(part.out + at * sizeof(float), values, some * sizeof(float));
        });
        coded += coded_bytes(format_, part.count);
      }
    }
  }

  Comm& comm_;
  std::span<const CodedRun> runs_;
  const WireFormat format_;
  const Scale& scale_;
  const Parts parts_;
  // Encoded size in bytes of the slice that each rank owns.
  std::span<size_t> bytes_;
  // Bytes that this rank receives from each rank. All are equal, because every rank sends it the same slice.
  std::span<size_t> own_sizes_;
  size_t total_ = 0, before_ = 0;
};

}  // namespace

Status allreduce_coded_runs(Comm& comm, std::span<const CodedRun> runs, WireFormat format, const Scale& scale) {
  return CodedAllreduce(comm, runs, format, scale).run();
}

Status allreduce_compressed(Comm& comm, const Segments& data, std::span<float* const> residuals, WireFormat format, const Scale& scale) {
  return in_batches(data, residuals, [&](std::span<const CodedRun> runs) { return allreduce_coded_runs(comm, runs, format, scale); });
}

// Compressed allreduce for hosts with several ranks: float32 in shared memory within hosts, where bytes are cheap, and encoded data between
// hosts. As in allreduce_hierarchical, each rank with a local index below comm.slices owns a slice of its host's sum. The owners of a slice
// on all hosts reduce it with the compressed algorithm. A slice contains one part of every tensor, so ownership does not depend on fusion.
//
// Error feedback: every rank adds its residual to its contribution and clears the residual. The quantization error of
// the host's sum goes to the residual of the rank that owns the slice.

namespace {

class Slices {
 public:
  Slices(Comm& comm, std::span<const CodedRun> runs, WireFormat format)
      : comm_(comm), local_(*comm.local), runs_(runs), parts_{format, static_cast<size_t>(comm.slices)},
        counts_(reinterpret_cast<size_t*>(comm.scratch->get(kSlotHierarchyCounts, local_.size * sizeof(size_t))), local_.size) {
    for (size_t s = 0; s < counts_.size(); ++s) {
      counts_[s] = 0;
      for (size_t i = 0; s < parts_.n && i < runs_.size(); ++i) counts_[s] += parts_.of(runs_[i], s).count;
      total_ += counts_[s];
      if (s < static_cast<size_t>(local_.rank)) before_ += counts_[s];
    }
  }

  Status run(WireFormat format, const Scale& scale) {
    if (total_ == 0) return {};
    const size_t me = static_cast<size_t>(local_.rank);
    auto* wide = reinterpret_cast<float*>(comm_.scratch->get(kSlotHierarchyWide, total_ * sizeof(float)));
    auto* bytes = reinterpret_cast<std::byte*>(wide);
    gather_in(wide);
    std::byte* slice = bytes + before_ * sizeof(float);
    if (local_.size > 1) {
      slice = comm_.scratch->get(kSlotHierarchySlice, counts_[me] * sizeof(float));
      HVD_RETURN_IF_ERROR(reducescatter_shm(local_, bytes, slice, counts_, DType::float32, ReduceOp::sum, {}));
    }
    if (me < parts_.n) HVD_RETURN_IF_ERROR(allreduce_coded_runs(*comm_.cross, own_runs(slice), format, scale));
    if (local_.size > 1) {
      for (size_t& count : counts_) count *= sizeof(float);
      HVD_RETURN_IF_ERROR(allgather_shm(local_, slice, bytes, counts_));
    }
    scatter_out(wide);
    return {};
  }

 private:
  // Copy all inputs, with their residuals, to `wide`, slice by slice. Each slice contains its part of every tensor.
  void gather_in(float* wide) const {
    for (size_t s = 0; s < parts_.n; ++s) {
      for (const CodedRun& run : runs_) {
        const CodedRun part = parts_.of(run, s);
        in_steps(part.count, [&](size_t at, size_t some) { load_contribution(part, at, some, wide + at); });
        if (part.residual) std::memset(part.residual, 0, part.count * sizeof(float));
        wide += part.count;
      }
    }
  }

  std::span<const CodedRun> own_runs(std::byte* slice) {
    own_.clear();
    for (const CodedRun& run : runs_) {
      const CodedRun part = parts_.of(run, static_cast<size_t>(local_.rank));
      if (part.count == 0) continue;
      own_.push_back({slice, slice, part.residual, part.count});
      slice += part.count * sizeof(float);
    }
    return own_;
  }

  void scatter_out(const float* wide) const {
    for (size_t s = 0; s < parts_.n; ++s) {
      for (const CodedRun& run : runs_) {
        const CodedRun part = parts_.of(run, s);
        if (part.out && part.count > 0) std::memcpy(part.out, wide, part.count * sizeof(float));
        wide += part.count;
      }
    }
  }

  Comm& comm_;
  Comm& local_;
  std::span<const CodedRun> runs_;
  const Parts parts_;
  // Number of elements in each local rank's slice.
  std::span<size_t> counts_;
  size_t total_ = 0, before_ = 0;
  std::vector<CodedRun> own_;
};

}  // namespace

Status allreduce_compressed_hierarchical(Comm& comm, const Segments& data, std::span<float* const> residuals, WireFormat format,
                                         const Scale& scale) {
  if (!comm.local || comm.slices < 1 || comm.slices > comm.local->size || (!comm.cross && comm.local->rank < comm.slices)) {
    return Status(Code::internal, "hierarchical allreduce needs the process set's communicators within and between hosts");
  }
  return in_batches(data, residuals, [&](std::span<const CodedRun> runs) { return Slices(comm, runs, format).run(format, scale); });
}

}  // namespace hvd
