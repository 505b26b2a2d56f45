// The frames of a TCP connection: whatever a peer sends ends in frames of the announced length, or in an Error.
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "fuzz/input.h"
#include "transport/tcp_link.h"
#include "transport/transport.h"

namespace {

using hvd::Frame;
using hvd::FrameHeader;
using hvd::FrameKey;
using hvd::TcpLink;
using hvd::fuzz::Input;

// Headers whose lengths fit are rare in random bytes, so half of the frames are made.
void send_something(Input& in, int socket) {
  hvd::Bytes payload = in.bytes(600);
  if (in.flip()) {
    FrameHeader header{.key = {0, static_cast<uint32_t>(in.below(3)), static_cast<uint32_t>(in.below(3))},
                       .bytes = static_cast<uint32_t>(payload.size())};
    if (in.below(16) == 1) header.bytes = static_cast<uint32_t>(in.number());
    static_cast<void>(send(socket, &header, sizeof(header), MSG_DONTWAIT | MSG_NOSIGNAL));
  }
  static_cast<void>(send(socket, payload.data(), payload.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

unsigned sum_of(const Frame& frame) {
  unsigned sum = 0;
  for (size_t i = 0; i < frame.header.bytes; ++i) sum += static_cast<unsigned>(frame.payload[i]);
  return sum;
}

void use(Input& in, TcpLink& link, std::vector<std::byte>& place) {
  const FrameKey key{0, static_cast<uint32_t>(in.below(3)), static_cast<uint32_t>(in.below(3))};
  switch (in.below(6)) {
    case 0:
      link.withdraw(key);  // one place at a time, as executions do
      link.expect(key, std::span(place).first(std::min(place.size(), in.bytes(600).size())));
      break;
    case 1:
      link.withdraw(key);
      break;
    case 2:
      static_cast<void>(link.set_aside());
      break;
    case 3:
      if (Frame* frame = link.find(key)) link.consume(*frame);
      break;
    default:
      if (Frame* frame = link.front()) {
        const volatile unsigned sum = sum_of(*frame);
        static_cast<void>(sum);
        link.consume(*frame);
      }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  auto [mine, theirs] = hvd::make_socket_pair();
  std::vector<std::byte> place(600);
  try {
    TcpLink link(std::move(mine));
    while (!in.empty()) {
      send_something(in, theirs.get());
      link.poll();
      use(in, link, place);
    }
    theirs.reset();
    link.poll();
  } catch (const hvd::Error&) {
    return 0;
  }
  return 0;
}
