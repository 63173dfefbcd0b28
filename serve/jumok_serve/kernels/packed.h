// Weights in the order in which products read them; equal ones are kept once in a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "products.h"

namespace jumok {

template <typename Weight>
class PackedWeights {
 public:
  // Those of a matrix [depth, columns], or [columns, depth] if it is transposed; maybe ones that were packed before.
  static std::shared_ptr<const PackedWeights> of(const Weight* matrix, int64_t depth, int64_t columns, bool transposed);

  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  int64_t panels() const;
  const Weight* panel(int64_t index) const;
  Sets sets(int64_t panel) const;  // none where products take none
  const int32_t* places(int64_t panel) const;
  bool takes_words() const;  // for panels without sets
  // [columns], over the depth; of floats those of their bits, by which equal ones are found.
  const int32_t* sums() const { return sums_.data(); }

 private:
  PackedWeights(const Weight* matrix, int64_t depth, int64_t columns, bool transposed);
  bool equals(const PackedWeights& other) const;

  static int64_t group();
  int64_t groups() const { return (depth_ + group() - 1) / group(); }
  void arrange();
  size_t bytes() const { return static_cast<size_t>(panels() * panel_size_) * sizeof(Weight); }
  Weight* first() const { return weights_.get(); }

  int64_t depth_, columns_, panel_size_;
  std::unique_ptr<Weight, Arena::GiveBack> weights_;
  std::vector<int32_t> sums_, places_;  // places_: [panels, groups]
  std::vector<Sets> sets_;              // [panels]
};

}  // namespace jumok
