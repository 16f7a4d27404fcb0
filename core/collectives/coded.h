// Code shared by the two compressed allreduces: tensors split into runs, and the batches in which these are processed.
// Private to this layer.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "collectives/codec.h"
#include "collectives/flow.h"

namespace hvd {

// A range of one float32 tensor.
struct CodedRun {
  const std::byte* in;   // null: the input is zeros
  std::byte* out;        // null: the result is dropped
  std::byte* residual;   // null: the coding error is dropped
  size_t count;          // number of elements

  CodedRun part(size_t first, size_t n) const {
    const size_t at = first * sizeof(float);
    return {in ? in + at : nullptr, out ? out + at : nullptr, residual ? residual + at : nullptr, n};
  }
};

// Split of every tensor into n parts, of which part i belongs to rank i. The split depends only on the tensor, not on
// what it is fused with, and parts begin where coded data may be split. So neither the blocks nor the owner of a
// residual depend on fusion.
struct Parts {
  WireFormat format;
  size_t n;
  size_t begin(size_t count, size_t i) const {
    const size_t unit = code_unit(format);
    const size_t units = (count + unit - 1) / unit;
    return std::min(count, unit * slice_at(units, static_cast<int>(n), static_cast<int>(i)));
  }
  CodedRun of(const CodedRun& run, size_t i) const {
    const size_t first = begin(run.count, i);
    return run.part(first, begin(run.count, i + 1) - first);
  }
};

// Maximum elements processed at a time (16 MiB). Bounds the memory: a batch needs no more than the size of its data.
inline constexpr size_t kCodedBatch = 4 << 20;
// Elements converted at a time, so that they stay in the L1 cache. A multiple of every code_unit().
inline constexpr size_t kCodedStep = 1024;

// Call each(runs) for batches of at most kCodedBatch elements. Tensors are split at multiples of that, independent of
// the tensors before them.
template <class Each>
Status in_batches(const Segments& data, std::span<float* const> residuals, Each each) {
  std::vector<CodedRun> runs;
  size_t held = 0;
  for (size_t i = 0; i < data.pieces.size(); ++i) {
    const Segments::Piece& piece = data.pieces[i];
    const CodedRun whole{piece.in, piece.out, reinterpret_cast<std::byte*>(residuals.empty() ? nullptr : residuals[i]), piece.count};
    for (size_t at = 0; at < whole.count;) {
      const size_t some = std::min(whole.count - at, kCodedBatch);
      if (held + some > kCodedBatch) {
        HVD_RETURN_IF_ERROR(each(std::span<const CodedRun>(runs)));
        runs.clear();
        held = 0;
      }
      runs.push_back(whole.part(at, some));
      held += some;
      at += some;
    }
  }
  return runs.empty() ? Status() : each(std::span<const CodedRun>(runs));
}

// Call visit(first, count) for steps that cover [0, count).
template <class Visit>
void in_steps(size_t count, Visit visit) {
  for (size_t at = 0; at < count; at += kCodedStep) visit(at, std::min(kCodedStep, count - at));
}

// Compute to = in + residual for elements [first, first + n) of the run; n is at most kCodedStep.
void load_contribution(const CodedRun& run, size_t first, size_t n, float* to);

// Sum one batch of runs over the ranks of `comm`, coded on the wire, and scale it. See allreduce_compressed.cc.
Status allreduce_coded_runs(Comm& comm, std::span<const CodedRun> runs, WireFormat format, const Scale& scale);

}  // namespace hvd
