// Weights of 8 bits in the order in which products read them; equal ones are kept once in a process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace jumok {

class PackedWeights {
 public:
  // Those of a matrix [depth, columns], or [columns, depth] if it is transposed; maybe ones that were packed before.
  static std::shared_ptr<const PackedWeights> of(const int8_t* matrix, int64_t depth, int64_t columns, bool transposed);

  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  int64_t panels() const;
  const int8_t* panel(int64_t index) const;
  const int32_t* sums() const { return sums_.data(); }  // [columns], over the depth

 private:
  struct Free {
    void operator()(int8_t* memory) const;
  };

  PackedWeights(const int8_t* matrix, int64_t depth, int64_t columns, bool transposed);
  bool equals(const PackedWeights& other) const;

  int64_t depth_, columns_, panel_bytes_;
  std::unique_ptr<int8_t[], Free> weights_;
  std::vector<int32_t> sums_;
};

}  // namespace jumok
