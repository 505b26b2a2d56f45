#include "transport/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <new>

#include "base/error.h"

namespace hvd {
namespace {

constexpr size_t kControlCapacity = size_t{64} << 10;
constexpr size_t kMostDataCapacity = size_t{1} << 20;
constexpr size_t kLeastDataCapacity = size_t{128} << 10;
constexpr size_t kDataBudget = size_t{16} << 20;  // for all rings of one rank, on hosts with many ranks
constexpr size_t kFramesPerRing = 4;  // at least, so that a frame always fits behind the end of the last one
constexpr size_t kDoorbellBytes = sizeof(DoorbellWords);

}  // namespace

SegmentLayout::SegmentLayout(int num_local)
    : num_local(num_local),
      control_capacity(kControlCapacity),
      data_capacity(std::clamp(std::bit_floor(kDataBudget / static_cast<size_t>(num_local)), kLeastDataCapacity,
                               kMostDataCapacity)) {}

size_t SegmentLayout::total_bytes() const { return offset_of(num_local, LinkKind::kControl); }

size_t SegmentLayout::offset_of(int sender, LinkKind kind) const {
  const size_t control_bytes = sizeof(RingWords) + control_capacity;
  const size_t data_bytes = sizeof(RingWords) + data_capacity;
  return kDoorbellBytes + static_cast<size_t>(sender) * (control_bytes + data_bytes) +
         (kind == LinkKind::kData ? control_bytes : 0);
}

size_t max_ring_frame_bytes(int num_local) { return SegmentLayout(num_local).data_capacity / kFramesPerRing; }

size_t least_ring_frame_bytes() { return kLeastDataCapacity / kFramesPerRing; }

Segment::Segment(int num_local, Fd fd) : layout_(num_local), fd_(std::move(fd)) {
  const int flags = fd_.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* base = mmap(nullptr, layout_.total_bytes(), PROT_READ | PROT_WRITE, flags, fd_.get(), 0);
  if (base == MAP_FAILED) throw_errno("cannot map the memory that ranks of a host share");
  base_ = static_cast<std::byte*>(base);
}

Segment::~Segment() { munmap(base_, layout_.total_bytes()); }

std::shared_ptr<Segment> Segment::create_shared(int num_local) {
  Fd fd(memfd_create("horovod", MFD_CLOEXEC));
  if (!fd.valid()) throw_errno("cannot make the memory that ranks of a host share");
  if (ftruncate(fd.get(), static_cast<off_t>(SegmentLayout(num_local).total_bytes())) != 0) {
    throw_errno("cannot size the memory that ranks of a host share");
  }
  std::shared_ptr<Segment> segment(new Segment(num_local, std::move(fd)));
  segment->construct_words();
  return segment;
}

std::shared_ptr<Segment> Segment::create_private(int num_local) {
  std::shared_ptr<Segment> segment(new Segment(num_local, Fd()));
  segment->construct_words();
  return segment;
}

std::shared_ptr<Segment> Segment::open(int fd, int num_local) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) throw_errno("cannot look at the memory of a peer");
  if (static_cast<size_t>(facts.st_size) != SegmentLayout(num_local).total_bytes()) {
    throw Error(ErrorKind::kInternal, "the shared memory of a peer has " + std::to_string(facts.st_size) +
                                          " bytes: it counts another number of ranks on this host");
  }
  Fd copy(dup(fd));
  if (!copy.valid()) throw_errno("cannot duplicate a descriptor");
  std::shared_ptr<Segment> segment(new Segment(num_local, std::move(copy)));
  segment->fd_.reset();  // the mapping stays
  return segment;
}

void Segment::construct_words() {
  new (base_) DoorbellWords();
  for (int sender = 0; sender < layout_.num_local; ++sender) {
    for (const LinkKind kind : {LinkKind::kControl, LinkKind::kData}) {
      new (base_ + layout_.offset_of(sender, kind)) RingWords();
    }
  }
}

DoorbellWords* Segment::doorbell() const { return std::launder(reinterpret_cast<DoorbellWords*>(base_)); }

RingView Segment::ring(int sender, LinkKind kind) const {
  std::byte* at = base_ + layout_.offset_of(sender, kind);
  return {std::launder(reinterpret_cast<RingWords*>(at)), at + sizeof(RingWords),
          kind == LinkKind::kControl ? layout_.control_capacity : layout_.data_capacity};
}

}  // namespace hvd
