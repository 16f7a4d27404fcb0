// Compressed allreduce for hosts with several ranks: float32 in shared memory inside the hosts, where bytes are cheap,
// and coded data only between the hosts. As in allreduce_hierarchical, each of the first members of a host owns a slice
// of the host's sum, and the members with one index on all hosts reduce that slice among themselves, here with the
// compressed algorithm. A slice consists of one part of every tensor, so ownership does not depend on fusion.
//
// Error feedback: every rank adds its residual to its contribution and clears it. The coding error of the host's sum
// goes to the member that owns the slice.
#include <cstring>

#include "collectives/coded.h"
#include "collectives/collectives.h"

namespace hvd {
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
  // Order: slice by slice, run by run.
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
  std::span<size_t> counts_;  // by local rank: elements of its slice
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
