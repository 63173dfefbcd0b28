// Memory in large pages, of which what was given back is taken again: the first place that is large enough.
#pragma once

#include <cstddef>
#include <mutex>

namespace jumok {

// May be called from all threads. Lives as long as the process: memory of it may be given back at the very end.
class Arena {
 public:
  enum class Unused { kKept, kReturned };  // of free memory: it stays with the process, or the system has its pages

  explicit Arena(Unused unused) : unused_(unused) {}

  // From now on; with `kReturned` of what is free already, too.
  void set(Unused unused);

  // At a multiple of 64, and with any content. Throws std::bad_alloc, as ONNX Runtime's own allocators do.
  void* take(size_t bytes);

  // To the arena that it was taken from.
  static void give_back(void* memory);

  // The system has the pages of what is free now.
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
  Block* free_ = nullptr;  // in no order: there are few
};

}  // namespace jumok
