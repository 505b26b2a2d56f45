#include "transport/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "base/error.h"

namespace hvd {
namespace {

constexpr size_t kControlCapacity = size_t{64} << 10;
constexpr size_t kMostDataCapacity = size_t{1} << 20;
constexpr size_t kLeastDataCapacity = size_t{128} << 10;
constexpr size_t kDataBudget = size_t{16} << 20;  // for all rings of one rank, on hosts with many ranks
constexpr size_t kOutboxBytes = size_t{1} << 20;
constexpr size_t kFramesPerRing = 4;  // at least, so that a frame always fits behind the end of the last one
constexpr size_t kDoorbellBytes = sizeof(DoorbellWords);
// Addresses of a file, not memory: offsets in it are given out once and never again.
constexpr size_t kRoomBytes = size_t{1} << 42;
constexpr int kMostInterruptions = 100;
// No rank can make the memory of another one shorter, whose next access would kill that one with SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t begin_of_room(const SegmentLayout& layout) {
  return (layout.total_bytes() + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment;
}

// To grow a file past the limit is answered with a signal.
bool may_have_room(size_t file_bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= file_bytes);
}

// Returns how much room for arrays there is.
size_t resize(const Fd& fd, const SegmentLayout& layout) {
  const size_t with_room = begin_of_room(layout) + kRoomBytes;
  if (may_have_room(with_room) && ftruncate(fd.get(), static_cast<off_t>(with_room)) == 0) return kRoomBytes;
  if (ftruncate(fd.get(), static_cast<off_t>(layout.total_bytes())) != 0) {
    throw_errno("cannot size the memory that ranks of a host share");
  }
  return 0;
}

// The system starts anew when a signal interrupts it.
bool take_memory(int fd, size_t begin, size_t bytes) {
  for (int i = 0; i < kMostInterruptions; ++i) {
    if (fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0) return true;
    if (errno != EINTR) return false;
  }
  return false;
}

}  // namespace

SegmentLayout::SegmentLayout(int num_local)
    : num_local(num_local),
      control_capacity(kControlCapacity),
      data_capacity(std::clamp(std::bit_floor(kDataBudget / static_cast<size_t>(num_local)), kLeastDataCapacity,
                               kMostDataCapacity)),
      outbox_bytes(num_local > 2 ? kOutboxBytes : 0) {}

size_t SegmentLayout::offset_of_outbox() const { return offset_of(num_local, LinkKind::kControl); }

size_t SegmentLayout::total_bytes() const { return offset_of_outbox() + outbox_bytes; }

size_t SegmentLayout::offset_of(int sender, LinkKind kind) const {
  const size_t control_bytes = sizeof(RingWords) + control_capacity;
  const size_t data_bytes = sizeof(RingWords) + data_capacity;
  return kDoorbellBytes + static_cast<size_t>(sender) * (control_bytes + data_bytes) +
         (kind == LinkKind::kData ? control_bytes : 0);
}

size_t max_ring_frame_bytes(int num_local) { return SegmentLayout(num_local).data_capacity / kFramesPerRing; }

size_t least_ring_frame_bytes() { return kLeastDataCapacity / kFramesPerRing; }

Segment::Segment(int num_local, Fd fd, size_t room_bytes)
    : layout_(num_local), fd_(std::move(fd)), room_bytes_(room_bytes) {
  const int flags = fd_.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* base = mmap(nullptr, layout_.total_bytes(), PROT_READ | PROT_WRITE, flags, fd_.get(), 0);
  if (base == MAP_FAILED) throw_errno("cannot map the memory that ranks of a host share");
  base_ = static_cast<std::byte*>(base);
}

Segment::~Segment() { munmap(base_, layout_.total_bytes()); }

std::shared_ptr<Segment> Segment::create_shared(int num_local) {
  Fd fd(memfd_create("horovod", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) throw_errno("cannot make the memory that ranks of a host share");
  const size_t room_bytes = resize(fd, SegmentLayout(num_local));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) throw_errno("cannot seal the size of the memory that ranks share");
  std::shared_ptr<Segment> segment(new Segment(num_local, std::move(fd), room_bytes));
  segment->construct_words();
  return segment;
}

std::shared_ptr<Segment> Segment::create_private(int num_local) {
  std::shared_ptr<Segment> segment(new Segment(num_local, Fd(), 0));
  segment->construct_words();
  return segment;
}

std::shared_ptr<Segment> Segment::open(int fd, int num_local) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) throw_errno("cannot look at the memory of a peer");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ErrorKind::kInternal,
                "the shared memory of a peer is not sealed: the peer could shorten it, which would kill this rank");
  }
  const SegmentLayout layout(num_local);
  const bool has_room = static_cast<size_t>(facts.st_size) == begin_of_room(layout) + kRoomBytes;
  if (!has_room && static_cast<size_t>(facts.st_size) != layout.total_bytes()) {
    throw Error(ErrorKind::kInternal, "the shared memory of a peer has " + std::to_string(facts.st_size) +
                                          " bytes: it counts another number of ranks on this host");
  }
  Fd copy(dup(fd));
  if (!copy.valid()) throw_errno("cannot duplicate a descriptor");
  return std::shared_ptr<Segment>(new Segment(num_local, std::move(copy), has_room ? kRoomBytes : 0));
}

void Segment::construct_words() {
  new (base_) DoorbellWords();
  for (int sender = 0; sender < layout_.num_local; ++sender) {
    for (const LinkKind kind : {LinkKind::kControl, LinkKind::kData}) {
      new (base_ + layout_.offset_of(sender, kind)) RingWords();
    }
  }
}

std::byte* Segment::map_room(size_t offset, size_t bytes, bool reserve) const {
  if (offset > room_bytes_ || bytes > room_bytes_ - offset) {
    throw Error(ErrorKind::kInternal, "there is no room for " + std::to_string(bytes) +
                                          " bytes of shared memory: the size of files is limited (ulimit -f)");
  }
  const size_t begin = begin_of_room(layout_) + offset;
  if (reserve && !take_memory(fd_.get(), begin, bytes)) {
    throw_errno("cannot take " + std::to_string(bytes) + " bytes of shared memory");
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), static_cast<off_t>(begin));
  if (base == MAP_FAILED) throw_errno("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  return static_cast<std::byte*>(base);
}

DoorbellWords* Segment::doorbell() const { return std::launder(reinterpret_cast<DoorbellWords*>(base_)); }

RingView Segment::ring(int sender, LinkKind kind) const {
  std::byte* at = base_ + layout_.offset_of(sender, kind);
  return {std::launder(reinterpret_cast<RingWords*>(at)), at + sizeof(RingWords),
          kind == LinkKind::kControl ? layout_.control_capacity : layout_.data_capacity};
}

}  // namespace hvd
