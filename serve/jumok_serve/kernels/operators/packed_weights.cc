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

}  // namespace

template <typename Weight>
int64_t PackedWeights<Weight>::chunk() {
  return std::is_same_v<Weight, int8_t> ? gemm_kernels().chunk : 1;
}

template <>
void PackedWeights<int8_t>::form_groups() {
  depth_offsets_.resize(static_cast<size_t>(panels() * chunks()));
  for (int64_t i = 0; i < panels(); ++i)
    overflow_groups_.push_back(form_overflow_groups(first() + i * panel_size_, chunks(), gemm_kernels().columns,
                                                    depth_offsets_.data() + i * chunks()));
}

template <>
void PackedWeights<float>::form_groups() {}

template <typename Weight>
PackedWeights<Weight>::PackedWeights(const Weight* matrix, int64_t depth, int64_t columns, bool transposed)
    : depth_(depth),
      columns_(columns),
      panel_size_(chunks() * chunk() * gemm_kernels().columns),
      weights_(static_cast<Weight*>(arena().take(bytes()))),
      sums_(static_cast<size_t>(columns)) {
  std::memset(first(), 0, bytes());
  const int64_t width = gemm_kernels().columns, side = chunk();
  const int64_t row_step = transposed ? 1 : columns, column_step = transposed ? depth : 1;
  for (int64_t column = 0; column < columns; ++column) {
    const Weight* from = matrix + column * column_step;
    Weight* to = first() + column / width * panel_size_ + column % width * side;
    uint32_t sum = 0;
    for (int64_t row = 0; row < depth; ++row) {
      to[row / side * side * width + row % side] = from[row * row_step];
      sum += static_cast<uint32_t>(bits(from[row * row_step]));
    }
    sums_[static_cast<size_t>(column)] = static_cast<int32_t>(sum);
  }
  if (gemm_kernels().overflow_groups) form_groups();
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

template <typename Weight>
bool PackedWeights<Weight>::equals(const PackedWeights& other) const {
  return depth_ == other.depth_ && columns_ == other.columns_ && sums_ == other.sums_ &&
         depth_offsets_ == other.depth_offsets_ && overflow_groups_ == other.overflow_groups_ &&
         std::memcmp(first(), other.first(), bytes()) == 0;
}

template <typename Weight>
std::shared_ptr<const PackedWeights<Weight>> PackedWeights<Weight>::of(const Weight* matrix, int64_t depth,
                                                                       int64_t columns, bool transposed) {
  static std::mutex mutex;
  // By weight sums. Never freed, as sessions may outlive static objects.
  static auto& known = *new std::multimap<std::vector<int32_t>, std::weak_ptr<const PackedWeights>>;
  std::shared_ptr<const PackedWeights> made(new PackedWeights(matrix, depth, columns, transposed));
  give_back(matrix, sizeof(Weight) * static_cast<size_t>(depth * columns));
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto each = known.begin(); each != known.end();) each = each->second.expired() ? known.erase(each) : next(each);
  const auto [first, last] = known.equal_range(made->sums_);
  for (auto each = first; each != last; ++each)
    if (const auto other = each->second.lock(); other != nullptr && other->equals(*made)) return other;
  known.emplace(made->sums_, made);
  return made;
}

template class PackedWeights<int8_t>;
template class PackedWeights<float>;

}  // namespace jumok
