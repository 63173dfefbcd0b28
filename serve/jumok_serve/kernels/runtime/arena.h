// First-fit memory arena in huge pages.
#pragma once

#include <cstddef>
#include <mutex>

namespace jumok {

// Thread-safe. Lives until the end of the process, as memory may be freed at the very end.
class Arena {
 public:
  enum class Unused { kKept, kReturned };  // free memory stays with the process, or its pages go back to the system

  explicit Arena(Unused unused) : unused_(unused) {}

  // Takes effect at once: kReturned also returns what is free already.
  void set(Unused unused);

  // Aligned to 64 bytes, uninitialized. Throws std::bad_alloc, as ONNX Runtime's own allocators do.
  void* take(size_t bytes);

  // To the arena that it was taken from.
  static void give_back(void* memory);

  // Returns the pages of free memory to the system now.
  void return_unused();

  struct GiveBack {
    void operator()(void* memory) const { give_back(memory); }
  };

 private:
  struct Block;

  Block* add_region(size_t bytes);
  void split(Block* block, size_t bytes);
  void join(Block* block, Block* after);
  void insert(Block* block);
  void remove(Block* block);
  void free(Block* block);

  void return_free() const;

  std::mutex mutex_;
  Unused unused_;
  size_t regions_ = 0;
  Block* free_ = nullptr;  // unordered, as there are few
};

}  // namespace jumok
