// The residual connection, layer normalisation, and levels of its result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "operator.h"
#include "rows.h"

namespace jumok {

// The norm of sums; its weight, bias and, where levels are made, their scale and zero point are a kernel's inputs from
// some place on, and what it gives are all outputs: sums and norms, either of which may not be wanted, and the levels.
template <bool kQuantized>
class Norm {
 public:
  struct Results {
    Tensor sum, norm, levels;
    float* sums;  // which nobody may want: then they lie where norms will, or in memory of this thread
  };

  Norm(Settings& settings, size_t first)
      : weight_(settings.constant(first)), bias_(settings.constant(first + 1)),
        epsilon_(settings.get<float>("epsilon")) {
    if constexpr (kQuantized) levels_ = settings.levels<Levels>(first + 2, first + 3);
  }

  bool fits(int64_t width) const { return weight_.count() == width && bias_.count() == width; }

  Results results(Call& call, const Tensor& like) const {
    Results results;
    results.sum = call.output(0, like.sizes, like.axes);
    results.norm = call.output(1, like.sizes, like.axes);
    if constexpr (kQuantized) results.levels = call.output(2, like.sizes, like.axes);
    // What is allocated for each call may be given back to the system each time, and be mapped again page by page.
    static thread_local std::vector<float> own;
    if (!results.sum && !results.norm) own.resize(std::max(own.size(), static_cast<size_t>(like.count())));
    results.sums = (results.sum ? results.sum : results.norm).template as<float>();
    if (results.sums == nullptr) results.sums = own.data();
    return results;
  }

  // Of x [rows, width] and of y [repeated, width], which is added again and again; either may lie where sums do.
  void compute(Call& call, int64_t rows, const float* x, const float* y, int64_t repeated,
               const Results& results) const {
    const int64_t width = weight_.count();
    call.divide(rows, rows * width, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last;) {
        const int64_t of_y = row % repeated, count = std::min(last - row, repeated - of_y), place = row * width;
        jumok::rows()->add_norm({count, width, x + place, y + of_y * width, weight_.as<float>(), bias_.as<float>(),
                                 epsilon_, results.sums + place,
                                 results.norm ? results.norm.template as<float>() + place : nullptr,
                                 results.levels ? results.levels.template as<uint8_t>() + place : nullptr, levels_});
        row += count;
      }
    });
  }

 private:
  Tensor weight_, bias_;
  float epsilon_;
  Levels levels_;
};

void add_norm(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
