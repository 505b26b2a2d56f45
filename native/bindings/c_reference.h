// What the module _native hands out to libraries that speak the C interface.
#pragma once

#include <memory>

#include "bindings/c_interface.h"
#include "engine/engine.h"

namespace hvd::bindings {

// A caller that waits lets the handlers of signals run so often.
inline constexpr Duration kSignalCheckPeriod = std::chrono::milliseconds(200);

[[nodiscard]] const HvdInterface* c_interface();

// To be released with HvdInterface::release_engine.
[[nodiscard]] HvdEngine* refer_to(std::shared_ptr<Engine> engine);

// Sets whether a signal waits for the interpreter, whose handlers only run in its main thread; see c_interface.cc.
void look_for_signals_with(bool (*interrupted)());

}  // namespace hvd::bindings
