// Memory of objects of one kind that come and go in great numbers.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

// GCC says by macros that a sanitizer is on, clang by features.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HVD_WATCHES_MEMORY true
#elif defined(__has_feature)
#define HVD_WATCHES_MEMORY (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define HVD_WATCHES_MEMORY false
#endif

namespace hvd {

// An allocator that keeps freed blocks for the same thread's next objects: malloc joins larger blocks and divides them
// again. There is no lock that a thread could hold while the process forks; a thread that frees what another one made
// keeps no more than `kMost`.
template <typename T, size_t kMost>
class Recycling {
 public:
  using value_type = T;
  // Not under sanitizers, from which it would hide whoever uses an object behind its end.
  static constexpr bool kRecycles = !HVD_WATCHES_MEMORY;

  template <typename Other>
  struct rebind {
    using other = Recycling<Other, kMost>;
  };

  Recycling() = default;
  template <typename Other>
  Recycling(const Recycling<Other, kMost>&) {}  // NOLINT(google-explicit-constructor): as allocators have it

  [[nodiscard]] T* allocate(size_t count) {
    if (count != 1 || kept.first == nullptr) return std::allocator<T>().allocate(count);
    Block* block = kept.first;
    kept.first = block->next;
    --kept.size;
    return reinterpret_cast<T*>(block);
  }

  void deallocate(T* memory, size_t count) noexcept {
    if (!kRecycles || count != 1 || kept.ended || kept.size >= kMost) {
      std::allocator<T>().deallocate(memory, count);
      return;
    }
    static_assert(sizeof(T) >= sizeof(Block) && alignof(T) >= alignof(Block));
    thread_local const End end;
    kept.first = new (memory) Block{kept.first};
    ++kept.size;
  }

  friend bool operator==(const Recycling&, const Recycling&) { return true; }

 private:
  struct Block {
    Block* next;
  };

  // Has no destructor, as objects may be freed behind that.
  struct Kept {
    Block* first = nullptr;
    size_t size = 0;
    bool ended = false;
  };

  struct End {
    End() = default;
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    ~End() {
      kept.ended = true;
      while (kept.first != nullptr) {
        Block* block = kept.first;
        kept.first = block->next;
        std::allocator<T>().deallocate(reinterpret_cast<T*>(block), 1);
      }
    }
  };

  inline static thread_local constinit Kept kept{};
};

}  // namespace hvd

#undef HVD_WATCHES_MEMORY
