// Weights of 8 bits in the order in which products read them; equal ones are kept once in a process.
#pragma once

#include <cstddef>
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
  // Memory that is 0 at first.
  class Room {
   public:
    explicit Room(size_t bytes);
    ~Room();
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    int8_t* first() const { return first_; }
    size_t bytes() const { return bytes_; }

   private:
    int8_t* first_;
    size_t bytes_;
  };

  PackedWeights(const int8_t* matrix, int64_t depth, int64_t columns, bool transposed);
  bool equals(const PackedWeights& other) const;

  int64_t depth_, columns_, panel_bytes_;
  Room weights_;
  std::vector<int32_t> sums_;
};

}  // namespace jumok
