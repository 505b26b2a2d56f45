// Control messages: any bytes are a message or an Error, and what was decoded is encoded to the same again.
#include "engine/messages/control.h"
#include "fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using hvd::Bytes;
  using hvd::Message;
  try {
    const Bytes once = Message::decode(std::as_bytes(std::span(data, size))).encode();
    if (Message::decode(once).encode() != once) __builtin_trap();
  } catch (const hvd::Error&) {
    return 0;
  }
  return 0;
}
