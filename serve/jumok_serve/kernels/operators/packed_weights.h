// Weights in the order in which kernels read them; equal ones are shared within a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "isa/gemm.h"
#include "runtime/arena.h"

namespace jumok {

template <typename Weight>
struct Matrix;

template <typename Weight>
class PackedWeights {
 public:
  // Packs a matrix [depth, columns], or [columns, depth] if transposed, or returns an equal one.
  static std::shared_ptr<const PackedWeights> of(const Weight* matrix, int64_t depth, int64_t columns, bool transposed);

  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  int64_t panels() const;
  const Weight* panel(int64_t index) const;
  OverflowGroups overflow_groups(int64_t panel) const;  // empty without overflow groups
  const int32_t* depth_offsets(int64_t panel) const;
  bool needs_int16() const;  // true if some panel has no overflow groups
  // [columns], over the depth; for floats sums of their bits, which find equal weights
  const int32_t* sums() const { return sums_.data(); }

 private:
  PackedWeights(const Matrix<Weight>& matrix, std::vector<int32_t> sums);
  bool equals(const Matrix<Weight>& matrix) const;

  static int64_t chunk();
  int64_t chunks() const { return (depth_ + chunk() - 1) / chunk(); }
  void pack(const Matrix<Weight>& matrix, int64_t from, int64_t to, Weight* panel) const;  // of these columns
  OverflowGroups form_groups(Weight* panel, int32_t* depth_offsets) const;
  size_t bytes() const { return static_cast<size_t>(panels() * panel_size_) * sizeof(Weight); }
  Weight* first() const { return weights_.get(); }

  int64_t depth_, columns_, panel_size_;
  std::unique_ptr<Weight, Arena::GiveBack> weights_;
  std::vector<int32_t> sums_, depth_offsets_;    // depth_offsets_: [panels, chunks]
  std::vector<OverflowGroups> overflow_groups_;  // [panels]
};

}  // namespace jumok
