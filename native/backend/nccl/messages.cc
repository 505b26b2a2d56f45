#include "backend/nccl/messages.h"

namespace hvd::nccl {

const char* likely_causes(Result result) {
  switch (result) {
    case kUnhandledCudaError:
      return "the memory of the GPU is full, the driver is too old for this NCCL, or an earlier kernel failed";
    case kSystemError:
      return "NCCL took a network interface that does not reach the other hosts (NCCL_SOCKET_IFNAME names the right "
             "one), a firewall is in between, /dev/shm is too small (docker run --shm-size=1g), or the limits of open "
             "files or of locked memory are low (ulimit -n, ulimit -l)";
    case kInternalError:
      return "ranks with different versions of NCCL, /dev/shm that is too small, or a fault of NCCL";
    case kInvalidArgument:
      return "a fault of Horovod, or NCCL_* variables that differ between ranks";
    case kInvalidUsage:
      return "two ranks use the same GPU (torch.cuda.set_device(hvd.local_rank()) belongs before the first tensor), or "
             "a variable NCCL_* has a value that this machine cannot fulfill";
    case kRemoteError:
      return "the process of another rank ended, or the network to it broke; the output of that rank may tell why";
    default:
      return "a version of NCCL with other codes of errors than those known here";
  }
}

void check(const Library& library, Result result, const char* call, const std::string& who, const std::string& what,
           RawCommunicator comm) {
  if (result == kSuccess || result == kInProgress) return;
  const Functions& functions = *library.functions;
  const char* words = functions.get_error_string(result);
  std::string text = who + ": " + what + ": " + call + " of " + library.name() +
                     " failed: " + (words != nullptr ? words : "error " + std::to_string(result));
  const char* last = functions.get_last_error != nullptr ? functions.get_last_error(comm) : nullptr;
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  text += ". Likely: ";
  text += likely_causes(result);
  throw CallError(result, text + ". NCCL_DEBUG=WARN lets NCCL write more.");
}

}  // namespace hvd::nccl
