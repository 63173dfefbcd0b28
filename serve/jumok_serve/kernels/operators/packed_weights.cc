// Packs weights, and shares equal ones.
#include "operators/packed_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "isa/gemm.h"

namespace jumok {
namespace {

// True if a range of memory is a private mapping of an existing file.
bool is_of_file(uintptr_t first, uintptr_t last) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  bool found = false;
  char line[4096];
  while (!found && std::fgets(line, sizeof line, maps) != nullptr) {
    uintptr_t from = 0, to = 0, inode = 0;
    char shared = 0;
    const int read =
        std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*3c%c %*s %*s %" SCNuPTR, &from, &to, &shared, &inode);
    found = read == 4 && from <= first && last <= to && shared == 'p' && inode != 0 && !std::strstr(line, "(deleted)");
  }
  std::fclose(maps);
  return found;
}

// True if no page was written to, so that all present pages are the file's own.
bool is_untouched(uintptr_t first, uintptr_t last, uintptr_t page) {
  constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kOfFile = uint64_t{1} << 61;
  std::FILE* pages = std::fopen("/proc/self/pagemap", "re");
  if (pages == nullptr) return false;
  std::vector<uint64_t> entries((last - first) / page);
  const bool read = std::fseek(pages, static_cast<long>(first / page * sizeof(uint64_t)), SEEK_SET) == 0 &&
                    std::fread(entries.data(), sizeof(uint64_t), entries.size(), pages) == entries.size();
  std::fclose(pages);
  return read && std::none_of(entries.begin(), entries.end(), [](uint64_t entry) {
           return (entry & kSwapped) != 0 || ((entry & kPresent) != 0 && (entry & kOfFile) == 0);
         });
}

// Releases pages of a file that were read once; a later read loads them again.
void give_back(const void* memory, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (from + page - 1) / page * page, last = (from + bytes) / page * page;
  if (first < last && is_of_file(first, last) && is_untouched(first, last, page))
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

// Huge pages of packed weights, returned to the system when freed; malloc would fragment.
Arena& arena() {
  static Arena& lasting = *new Arena(Arena::Unused::kReturned);
  return lasting;
}

int32_t bits(int8_t weight) { return weight; }
int32_t bits(float weight) {
  int32_t same;
  std::memcpy(&same, &weight, sizeof same);
  return same;
}

constexpr int64_t kPortion = int64_t{1} << 24;  // weights of a mapped file that are read before pages are released

}  // namespace

// A matrix in memory, or in a mapped file whose pages are released once they were read.
template <typename Weight>
struct Matrix {
  const Weight* weights;  // [depth, columns], or [columns, depth] if transposed
  int64_t depth, columns;
  bool transposed;

  const Weight* column(int64_t index) const { return weights + index * (transposed ? depth : 1); }
  int64_t row_step() const { return transposed ? 1 : columns; }

  // Calls a function with the first column of each `width` and the one after the last, until it returns false; returns
  // false then.
  template <typename Visit>
  bool visit(int64_t width, Visit visit) const {
    bool wanted = true;
    for (int64_t column = 0, read = 0; wanted && column < columns;) {
      const int64_t next = std::min(column + width, columns);
      wanted = visit(column, next);
      column = next;
      if (transposed && (column - read) * depth >= kPortion) {
        give_back(weights + read * depth, sizeof(Weight) * static_cast<size_t>((column - read) * depth));
        read = column;
      }
    }
    give_back(weights, sizeof(Weight) * static_cast<size_t>(depth * columns));
    return wanted;
  }
};

template <typename Weight>
std::vector<int32_t> sums_of(const Matrix<Weight>& matrix) {
  std::vector<int32_t> sums(static_cast<size_t>(matrix.columns));
  matrix.visit(gemm_kernels().columns, [&](int64_t from, int64_t to) {
    for (int64_t column = from; column < to; ++column) {
      const Weight* const weights = matrix.column(column);
      uint32_t sum = 0;
      for (int64_t row = 0; row < matrix.depth; ++row)
        sum += static_cast<uint32_t>(bits(weights[row * matrix.row_step()]));
      sums[static_cast<size_t>(column)] = static_cast<int32_t>(sum);
    }
    return true;
  });
  return sums;
}

template <typename Weight>
int64_t PackedWeights<Weight>::chunk() {
  return std::is_same_v<Weight, int8_t> ? gemm_kernels().chunk : 1;
}

template <>
OverflowGroups PackedWeights<int8_t>::form_groups(int8_t* panel, int32_t* depth_offsets) const {
  return form_overflow_groups(panel, chunks(), gemm_kernels().columns, depth_offsets);
}

template <>
OverflowGroups PackedWeights<float>::form_groups(float*, int32_t*) const {
  return {};
}

template <typename Weight>
void PackedWeights<Weight>::pack(const Matrix<Weight>& matrix, int64_t from, int64_t to, Weight* panel) const {
  std::memset(panel, 0, static_cast<size_t>(panel_size_) * sizeof(Weight));
  const int64_t width = gemm_kernels().columns, side = chunk(), row_step = matrix.row_step();
  for (int64_t column = from; column < to; ++column) {
    const Weight* const weights = matrix.column(column);
    Weight* const packed = panel + (column - from) * side;
    for (int64_t row = 0; row < depth_; row += side)
      for (int64_t i = 0; i < std::min(side, depth_ - row); ++i)
        packed[row * width + i] = weights[(row + i) * row_step];
  }
}

template <typename Weight>
PackedWeights<Weight>::PackedWeights(const Matrix<Weight>& matrix, std::vector<int32_t> sums)
    : depth_(matrix.depth),
      columns_(matrix.columns),
      panel_size_(chunks() * chunk() * gemm_kernels().columns),
      weights_(static_cast<Weight*>(arena().take(bytes()))),
      sums_(std::move(sums)) {
  const bool grouped = std::is_same_v<Weight, int8_t> && gemm_kernels().overflow_groups;
  if (grouped) depth_offsets_.resize(static_cast<size_t>(panels() * chunks()));
  matrix.visit(gemm_kernels().columns, [&](int64_t from, int64_t to) {
    const int64_t index = from / gemm_kernels().columns;
    Weight* const panel = first() + index * panel_size_;
    pack(matrix, from, to, panel);
    if (grouped) overflow_groups_.push_back(form_groups(panel, depth_offsets_.data() + index * chunks()));
    return true;
  });
}

template <typename Weight>
int64_t PackedWeights<Weight>::panels() const {
  return (columns_ + gemm_kernels().columns - 1) / gemm_kernels().columns;
}

template <typename Weight>
const Weight* PackedWeights<Weight>::panel(int64_t index) const {
  return first() + index * panel_size_;
}

template <typename Weight>
OverflowGroups PackedWeights<Weight>::overflow_groups(int64_t panel) const {
  return overflow_groups_.empty() ? OverflowGroups{} : overflow_groups_[static_cast<size_t>(panel)];
}

template <typename Weight>
const int32_t* PackedWeights<Weight>::depth_offsets(int64_t panel) const {
  return depth_offsets_.data() + panel * chunks();
}

template <typename Weight>
bool PackedWeights<Weight>::needs_int16() const {
  return std::any_of(overflow_groups_.begin(), overflow_groups_.end(),
                     [](const OverflowGroups& overflow_groups) { return overflow_groups.chunks() == 0; });
}

// Groups follow from weights, and weights from panels with their depth offsets.
template <typename Weight>
bool PackedWeights<Weight>::equals(const Matrix<Weight>& matrix) const {
  if (depth_ != matrix.depth || columns_ != matrix.columns) return false;
  std::vector<Weight> expected(static_cast<size_t>(panel_size_));
  std::vector<int32_t> offsets(static_cast<size_t>(chunks()));
  return matrix.visit(gemm_kernels().columns, [&](int64_t from, int64_t to) {
    const int64_t index = from / gemm_kernels().columns;
    pack(matrix, from, to, expected.data());
    if (!overflow_groups_.empty()) {
      const bool alike = form_groups(expected.data(), offsets.data()) == overflow_groups(index);
      if (!alike || !std::equal(offsets.begin(), offsets.end(), depth_offsets(index))) return false;
    }
    return std::memcmp(panel(index), expected.data(), expected.size() * sizeof(Weight)) == 0;
  });
}

template <typename Weight>
std::shared_ptr<const PackedWeights<Weight>> PackedWeights<Weight>::of(const Weight* weights, int64_t depth,
                                                                       int64_t columns, bool transposed) {
  static std::mutex mutex;
  // By weight sums. Never freed, as sessions may outlive static objects.
  static auto& known = *new std::multimap<std::vector<int32_t>, std::weak_ptr<const PackedWeights>>;
  const Matrix<Weight> matrix{weights, depth, columns, transposed};
  std::vector<int32_t> sums = sums_of(matrix);
  const std::lock_guard<std::mutex> lock(
      mutex);  // also while packing: equal weights are packed once, one matrix after the other
  for (auto each = known.begin(); each != known.end();) each = each->second.expired() ? known.erase(each) : next(each);
  const auto [first, last] = known.equal_range(sums);
  for (auto each = first; each != last; ++each)
    if (const auto other = each->second.lock(); other != nullptr && other->equals(matrix)) return other;
  const std::shared_ptr<const PackedWeights> made(new PackedWeights(matrix, std::move(sums)));
  known.emplace(made->sums_, made);
  return made;
}

template class PackedWeights<int8_t>;
template class PackedWeights<float>;

}  // namespace jumok
