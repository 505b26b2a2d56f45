// What we use of XLA's C interface for custom calls, declared by hand: we are compiled against no version of it. These
// layouts are the same in the versions 0.1 to 0.5; later ones only append fields.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::jax {

inline constexpr int kXlaMajor = 0;
inline constexpr int kXlaMinor = 1;

struct XlaError;
struct XlaFuture;
struct XlaContext;

struct XlaExtension {
  size_t struct_size;
  int32_t type;
  XlaExtension* next;
};
inline constexpr int32_t kMetadataExtension = 1;

struct XlaVersion {
  size_t struct_size;
  XlaExtension* extensions;
  int major;
  int minor;
};

struct XlaMetadata {
  size_t struct_size;
  XlaVersion version;
  uint32_t traits;
};

struct XlaMetadataExtension {
  XlaExtension base;
  XlaMetadata* metadata;
};

enum XlaCode : int32_t {
  kXlaInvalidArgument = 3,
  kXlaFailedPrecondition = 9,
  kXlaInternal = 13,
  kXlaUnavailable = 14,
};

struct XlaErrorCreateArgs {
  size_t struct_size;
  XlaExtension* extensions;
  const char* message;
  int32_t code;
};

struct XlaFutureCreateArgs {
  size_t struct_size;
  XlaExtension* extensions;
  XlaFuture* future;  // out
};

struct XlaFutureSetAvailableArgs {
  size_t struct_size;
  XlaExtension* extensions;
  XlaFuture* future;
};

struct XlaFutureSetErrorArgs {
  size_t struct_size;
  XlaExtension* extensions;
  XlaFuture* future;
  XlaError* error;  // XLA's from then on
};

struct XlaApi {
  size_t struct_size;
  XlaExtension* extensions;
  XlaVersion version;
  const void* internal;
  XlaError* (*error_create)(XlaErrorCreateArgs*);
  void* of_no_use[12];
  XlaError* (*future_create)(XlaFutureCreateArgs*);
  XlaError* (*future_set_available)(XlaFutureSetAvailableArgs*);
  XlaError* (*future_set_error)(XlaFutureSetErrorArgs*);
};

struct XlaBuffer {
  size_t struct_size;
  XlaExtension* extensions;
  int32_t dtype;
  void* data;
  int64_t num_dims;
  int64_t* dims;
};

struct XlaBuffers {
  size_t struct_size;
  XlaExtension* extensions;
  int64_t size;
  int32_t* types;
  XlaBuffer** buffers;
};

struct XlaText {
  const char* data;
  size_t size;
};

struct XlaScalar {
  int32_t dtype;
  void* value;
};

enum XlaAttributeType : int32_t { kXlaScalar = 3, kXlaText = 4 };

struct XlaAttributes {
  size_t struct_size;
  XlaExtension* extensions;
  int64_t size;
  int32_t* types;
  XlaText** names;
  void** values;
};

struct XlaCallFrame {
  size_t struct_size;
  XlaExtension* extensions;
  const XlaApi* api;
  XlaContext* context;
  int32_t stage;
  XlaBuffers arguments;
  XlaBuffers results;
  XlaAttributes attributes;
  XlaFuture* future;  // out
};

}  // namespace hvd::jax
