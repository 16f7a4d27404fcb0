// What the two compressed allreduces share: tensors cut into runs, and the batches in which they are worked off. Private to this floor.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "collectives/codec.h"
#include "collectives/flow.h"

namespace hvd {

// A stretch of one tensor of float32.
struct CodedRun {
  const std::byte* in;   // null: zeros
  std::byte* out;        // null: the result is dropped
  std::byte* residual;   // null: what gets lost is lost
  size_t count;          // elements

  CodedRun part(size_t first, size_t n) const {
    const size_t at = first * sizeof(float);
    return {in ? in + at : nullptr, out ? out + at : nullptr, residual ? residual + at : nullptr, n};
  }
};

// Part i of n of every tensor belongs to rank i. That depends on the tensor alone, not on what it is fused with, and parts begin where
// coded data may be cut: so neither the blocks nor who keeps which residual depends on the fusion.
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

// Elements that are worked on at a time (16 MiB): bounds the memory, of which a batch needs no more than the data themselves.
inline constexpr size_t kCodedBatch = 4 << 20;
// Elements that are converted at a time: they stay in the first-level cache. A multiple of every code_unit().
inline constexpr size_t kCodedStep = 1024;

// each(runs) on batches of runs of at most kCodedBatch elements. Tensors are cut at multiples of that, whatever is before them.
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

// visit(first, count) for steps that cover [0, count).
template <class Visit>
void in_steps(size_t count, Visit visit) {
  for (size_t at = 0; at < count; at += kCodedStep) visit(at, std::min(kCodedStep, count - at));
}

// to = in + residual for elements [first, first + n) of the run; n is at most kCodedStep.
void load_contribution(const CodedRun& run, size_t first, size_t n, float* to);

// The runs' part of one batch: their sum over the ranks of `comm`, scaled, coded on the way. See allreduce_compressed.cc.
Status allreduce_coded_runs(Comm& comm, std::span<const CodedRun> runs, WireFormat format, const Scale& scale);

}  // namespace hvd
