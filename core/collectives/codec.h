// Compressed encodings of float32 values that are sent between ranks.
//
// With fp16 and bf16, each value is rounded to nearest, ties to even. Values above 65504 become infinity in float16;
// gradient scalers rely on this.
//
// With int8, values form blocks of kCodeBlock values; the last block can be shorter. A block is a float32 scale, then
// one signed byte per value; the value is byte * scale. The scale is the block's largest magnitude / 127, with its
// significand truncated to 17 bits so that the product is exact. Bytes are rounded to nearest, ties to even. The error
// of a value is at most half the scale: 1/254 of the block's largest magnitude, or slightly more because of the cut. A
// block with an infinity or a NaN decodes to NaN throughout, so it is never mistaken for valid numbers. The smallest
// scale is 2^-107: values below 2^-108 become zero. Source of blockwise quantisation: D. Alistarh et al., "QSGD:
// Communication-efficient SGD via gradient quantization and encoding", NIPS 2017. Unlike that paper, this code does not
// round randomly, because results must be reproducible.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collectives/flow.h"

namespace hvd {

inline constexpr size_t kCodeBlock = 256;

// Return the number of values in the smallest unit of encoded data. Data can be split only between units.
constexpr size_t code_unit(WireFormat f) { return f == WireFormat::int8 ? kCodeBlock : 32; }

// Return the size in bytes of `count` encoded values.
constexpr size_t coded_bytes(WireFormat f, size_t count) {
  switch (f) {
    case WireFormat::none: return count * sizeof(float);
    case WireFormat::int8: return count + (count + kCodeBlock - 1) / kCodeBlock * sizeof(float);
    default: return count * 2;
  }
}

// Encode or decode floats. Float values must be aligned for float; encoded data need no alignment. Results are bitwise
// identical on every CPU.
void encode_floats(WireFormat, std::byte* to, const float* from, size_t count);
void decode_floats(WireFormat, float* to, const std::byte* from, size_t count);

// Helpers for the two compressed allreduces, which split tensors into runs of elements and process the runs in batches.
// They are private to the collectives layer.

// A run: a contiguous range of elements of one float32 tensor.
struct CodedRun {
  // Input values of these elements, or null if all are zero.
  const std::byte* in;
  // Memory for the results of these elements, or null to discard them.
  std::byte* out;
  // Quantization residual of these elements: the part of the values that compression lost. It is added to the next
  // call's values. If null, the lost part is discarded.
  std::byte* residual;
  size_t count;

  CodedRun part(size_t first, size_t n) const {
    const size_t at = first * sizeof(float);
    return {in ? in + at : nullptr, out ? out + at : nullptr, residual ? residual + at : nullptr, n};
  }
};

// Division of every tensor into n parts, of which part i belongs to rank i. A division depends only on its tensor, and parts contain whole
// units of encoded data. Neither the blocks nor the owner of a residual therefore depend on fusion.
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

// Maximum number of elements processed at a time (16 MiB). This bounds the scratch memory.
inline constexpr size_t kCodedBatch = 4 << 20;
// Number of elements converted at a time, small enough for the L1 cache. A multiple of every code_unit().
inline constexpr size_t kCodedStep = 1024;

// Call each(runs) for batches of at most kCodedBatch elements. Every tensor is split at multiples of kCodedBatch from its own start,
// whatever tensors precede it.
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

// Call visit(first, count) for consecutive ranges of at most kCodedStep elements that cover [0, count).
template <class Visit>
void in_steps(size_t count, Visit visit) {
  for (size_t at = 0; at < count; at += kCodedStep) visit(at, std::min(kCodedStep, count - at));
}

// Compute to = in + residual for elements [first, first + n) of the run; n is at most kCodedStep.
void load_contribution(const CodedRun& run, size_t first, size_t n, float* to);

// Sum a list of runs (contiguous ranges of tensor elements) over the ranks of `comm` and scale the result. Messages are encoded. See
// allreduce_compressed.cc.
Status allreduce_coded_runs(Comm& comm, std::span<const CodedRun> runs, WireFormat format, const Scale& scale);

}  // namespace hvd
