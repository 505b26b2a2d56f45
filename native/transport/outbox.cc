#include "transport/outbox.h"

#include <algorithm>
#include <utility>

namespace hvd {

std::byte* Outbox::try_reserve(size_t bytes) {
  const uint64_t capacity = memory_.size();
  if (memory_.empty() || bytes > capacity / 2) return nullptr;
  uint64_t begin = to_line(reserved_);
  if (begin % capacity + bytes > capacity) begin = (begin / capacity + 1) * capacity;  // payloads are not cut in two
  const auto fits = [&] { return sent_.empty() || begin + bytes - sent_.front().begin <= capacity; };
  if (!fits()) reclaim();
  if (!fits()) return nullptr;
  reserved_ = begin;
  return memory_.data() + begin % capacity;
}

void Outbox::commit(const FrameHeader& header, std::span<RingLink* const> links) {
  std::vector<Reader> readers;
  if (!spare_.empty()) {
    readers = std::move(spare_.back());
    spare_.pop_back();
  }
  for (RingLink* link : links) readers.push_back({link, link->commit_reference(header, reserved_ % memory_.size())});
  sent_.push_back({reserved_, std::move(readers)});
  reserved_ += header.bytes;
}

void Outbox::reclaim() {
  const auto has_read = [](const Reader& reader) { return reader.link->has_read(reader.position); };
  while (!sent_.empty() && std::all_of(sent_.front().readers.begin(), sent_.front().readers.end(), has_read)) {
    sent_.front().readers.clear();
    spare_.push_back(std::move(sent_.front().readers));
    sent_.pop_front();
  }
}

}  // namespace hvd
