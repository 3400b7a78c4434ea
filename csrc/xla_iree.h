// A small C interface over the IREE runtime: devices, programs, buffers, calls.
//
// This header is all that the rest of Halfhitch sees of IREE. The files in xla_iree/ implement it, and
// they alone include IREE's own headers.
//
// Conventions, which hold wherever a function does not say otherwise:
//
// * Errors. A fallible function returns NULL when it succeeded, else an error that the caller owns
//   and frees with hh_iree_error_free. Outputs are set to NULL or zero on failure. Nothing is
//   printed; nothing aborts.
// * Ownership. A `..._create`-like function hands its result to the caller, who frees it with the
//   matching `..._free`. Every free accepts NULL. Children keep their parents alive (a buffer its
//   device, a call its program), so handles may be freed in any order.
// * Versioned structs. The first field is `struct_size`, set by the caller to sizeof(the struct).
//   Fields beyond that size are taken as zero on input and are not written on output, so that an
//   older caller works with a newer library; a size of zero is an error.
// * Threads. Runtime, device and buffer handles may be used from several threads at once. A call is
//   used by one thread at a time, and of all calls of one program one is in hh_iree_call_invoke at a
//   time: the caller synchronises. Any thread may do either, and free a handle, once no other thread
//   uses that handle.
// * Strings are UTF-8 and NUL-terminated.
// * Who validates. Arguments that a caller can get wrong (NULL, sizes, ranks, kinds, ranges, products
//   that overflow) are refused here with INVALID_ARGUMENT or OUT_OF_RANGE before IREE sees them. A
//   handle that was freed, or a pointer to less memory than its length says, cannot be caught.

#ifndef HALFHITCH_XLA_IREE_H_
#define HALFHITCH_XLA_IREE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised when something that exists changes its meaning or layout; additions do not raise it.
#define HH_IREE_ABI_VERSION 1

// The highest rank of a buffer's shape.
#define HH_IREE_MAX_RANK 8

typedef struct hh_iree_error_t hh_iree_error_t;
typedef struct hh_iree_runtime_t hh_iree_runtime_t;
typedef struct hh_iree_device_list_t hh_iree_device_list_t;
typedef struct hh_iree_device_t hh_iree_device_t;
typedef struct hh_iree_program_t hh_iree_program_t;
typedef struct hh_iree_buffer_t hh_iree_buffer_t;
typedef struct hh_iree_call_t hh_iree_call_t;

//===-- Versions ----------------------------------------------------------------------------===//

// The version of the IREE runtime that is linked in, for example "3.13.0". Lives for ever.
const char* hh_iree_version(void);

// HH_IREE_ABI_VERSION as this library was compiled with.
uint32_t hh_iree_abi_version(void);

// Writes the sizes of the public structs, in the order of their declaration in this header, to
// `sizes` (at most `capacity` of them) and returns how many there are. For layout tests of bindings.
size_t hh_iree_abi_sizes(size_t* sizes, size_t capacity);

//===-- Errors ------------------------------------------------------------------------------===//

// IREE's status codes (those of absl), by number.
typedef enum hh_iree_code_t {
  HH_IREE_CODE_CANCELLED = 1,
  HH_IREE_CODE_UNKNOWN = 2,
  HH_IREE_CODE_INVALID_ARGUMENT = 3,
  HH_IREE_CODE_DEADLINE_EXCEEDED = 4,
  HH_IREE_CODE_NOT_FOUND = 5,
  HH_IREE_CODE_ALREADY_EXISTS = 6,
  HH_IREE_CODE_PERMISSION_DENIED = 7,
  HH_IREE_CODE_RESOURCE_EXHAUSTED = 8,
  HH_IREE_CODE_FAILED_PRECONDITION = 9,
  HH_IREE_CODE_ABORTED = 10,
  HH_IREE_CODE_OUT_OF_RANGE = 11,
  HH_IREE_CODE_UNIMPLEMENTED = 12,
  HH_IREE_CODE_INTERNAL = 13,
  HH_IREE_CODE_UNAVAILABLE = 14,
  HH_IREE_CODE_DATA_LOSS = 15,
  HH_IREE_CODE_UNAUTHENTICATED = 16,
} hh_iree_code_t;

// The status code. `error` must not be NULL.
int32_t hh_iree_error_code(const hh_iree_error_t* error);

// The full text, with IREE's own annotations. Lives as long as `error`, which must not be NULL.
const char* hh_iree_error_message(const hh_iree_error_t* error);

// Frees `error`.
void hh_iree_error_free(hh_iree_error_t* error);

//===-- Runtime -----------------------------------------------------------------------------===//

typedef enum hh_iree_log_level_t {
  HH_IREE_LOG_WARN = 1,
  HH_IREE_LOG_INFO = 2,
  HH_IREE_LOG_DEBUG = 3,
} hh_iree_log_level_t;

// Receives one event. `text` lives for the call only. May be called from any thread, several at
// once; must not call back into this library.
typedef void (*hh_iree_log_fn_t)(void* user_data, int32_t level, const char* text);

typedef struct hh_iree_runtime_options_t {
  size_t struct_size;
  hh_iree_log_fn_t log;  // may be NULL: events are dropped
  void* log_user_data;   // must live until the runtime and all that came from it are freed
} hh_iree_runtime_options_t;

// Creates a runtime with every driver that is linked in. `options` may be NULL. Several may exist.
hh_iree_error_t* hh_iree_runtime_create(const hh_iree_runtime_options_t* options,
                                        hh_iree_runtime_t** out_runtime);

// Gives the caller's reference back.
void hh_iree_runtime_free(hh_iree_runtime_t* runtime);

// The name of the linked driver with this index ("local-task", "cuda", ...), or NULL past the last.
// Being linked does not mean that it works here. Lives as long as the runtime.
const char* hh_iree_runtime_driver(const hh_iree_runtime_t* runtime, size_t index);

//===-- Devices -----------------------------------------------------------------------------===//

typedef struct hh_iree_device_info_t {
  size_t struct_size;
  const char* driver;  // "cuda"
  const char* id;      // stable: the driver's path for it (a UUID), or "default" where it has none
  const char* name;    // for people
  size_t ordinal;      // position in the driver's enumeration; not stable across processes
} hh_iree_device_info_t;

// Lists the devices of `driver`. NOT_FOUND for a driver that is not linked in, UNAVAILABLE when its
// system library is not there. Loads that library; starts no threads for the local drivers.
hh_iree_error_t* hh_iree_device_list_create(hh_iree_runtime_t* runtime, const char* driver,
                                            hh_iree_device_list_t** out_list);

size_t hh_iree_device_list_count(const hh_iree_device_list_t* list);

// Fills `out_info`; its strings live as long as the list.
hh_iree_error_t* hh_iree_device_list_get(const hh_iree_device_list_t* list, size_t index,
                                         hh_iree_device_info_t* out_info);

void hh_iree_device_list_free(hh_iree_device_list_t* list);

typedef struct hh_iree_device_options_t {
  size_t struct_size;
  const char* driver;       // mandatory
  const char* device;       // NULL, "" or "default": the driver's choice; "2": an ordinal; else an id
  uint32_t workers;         // local-task: threads, 1 to 64; 0: one a physical core; else ignored
  uint32_t worker_spin_us;  // local-task: how long an idle worker spins before it sleeps
} hh_iree_device_options_t;

// Opens a device. NOT_FOUND when the driver or the device is unknown, and the text lists what there
// is. The device's threads live until it and all that came from it are freed.
hh_iree_error_t* hh_iree_device_create(hh_iree_runtime_t* runtime,
                                       const hh_iree_device_options_t* options,
                                       hh_iree_device_t** out_device);

void hh_iree_device_free(hh_iree_device_t* device);

// What was opened. The strings live as long as the device.
hh_iree_error_t* hh_iree_device_info(const hh_iree_device_t* device,
                                     hh_iree_device_info_t* out_info);

// The address alignment, in bytes, from which host memory can be imported without a copy: 64 for the
// local drivers, the page size (at least 4096) for others.
size_t hh_iree_device_import_alignment(const hh_iree_device_t* device);

// True when host memory and device memory are the same for this driver, so that an import costs
// nothing in speed. On others an imported buffer is read over the bus.
bool hh_iree_device_shares_host_memory(const hh_iree_device_t* device);

// What the driver says of the device under a category and a key of its own, as a whole number: for
// "cuda", ("cuda.device", "compute_capability_major"); for "vulkan", ("vulkan.feature",
// "shader_float16"), 1 where the device was opened with it. NOT_FOUND for a key that the driver does
// not know.
hh_iree_error_t* hh_iree_device_query(const hh_iree_device_t* device, const char* category,
                                      const char* key, int64_t* out_value);

typedef struct hh_iree_memory_stats_t {
  size_t struct_size;
  uint64_t total_bytes;           // memory of the device; 0: the driver does not say
  uint64_t free_bytes;            // free at this moment; 0: the driver does not say
  uint64_t allocated_bytes;       // live in allocations of this device object, imports not counted
  uint64_t peak_bytes;            // the most that ever was live
  uint64_t max_allocation_bytes;  // the largest single buffer; 0: no limit known
} hh_iree_memory_stats_t;

hh_iree_error_t* hh_iree_device_memory(const hh_iree_device_t* device,
                                       hh_iree_memory_stats_t* out_stats);

//===-- Buffers -----------------------------------------------------------------------------===//

// Element types. I4 and U4 are packed two to a byte, the low nibble first.
typedef enum hh_iree_dtype_t {
  HH_IREE_DTYPE_NONE = 0,  // a program returned a type that is not in this list
  HH_IREE_DTYPE_F32 = 1,
  HH_IREE_DTYPE_F16 = 2,
  HH_IREE_DTYPE_BF16 = 3,
  HH_IREE_DTYPE_I8 = 4,
  HH_IREE_DTYPE_U8 = 5,
  HH_IREE_DTYPE_I4 = 6,
  HH_IREE_DTYPE_U4 = 7,
  HH_IREE_DTYPE_I32 = 8,
  HH_IREE_DTYPE_U32 = 9,
  HH_IREE_DTYPE_I64 = 10,
  HH_IREE_DTYPE_I16 = 11,
  HH_IREE_DTYPE_U16 = 12,
  HH_IREE_DTYPE_BOOL = 13,
} hh_iree_dtype_t;

// The bits of one element, or 0 for a value that is not a dtype.
uint32_t hh_iree_dtype_bits(int32_t dtype);

// How a buffer got its memory.
typedef enum hh_iree_origin_t {
  HH_IREE_ORIGIN_ALLOCATED = 0,  // zeroed memory of the device
  HH_IREE_ORIGIN_COPIED = 1,     // uploaded by copy
  HH_IREE_ORIGIN_IMPORTED = 2,   // the caller's memory itself, without a copy
  HH_IREE_ORIGIN_RESULT = 3,     // a program's result
} hh_iree_origin_t;

typedef enum hh_iree_upload_policy_t {
  // Import where the device shares host memory and the address is aligned, else copy.
  HH_IREE_UPLOAD_AUTO = 0,
  HH_IREE_UPLOAD_COPY = 1,
  // Import whenever the device takes it, even if it is slow to read, else copy.
  HH_IREE_UPLOAD_PREFER_IMPORT = 2,
  // Import or fail.
  HH_IREE_UPLOAD_REQUIRE_IMPORT = 3,
} hh_iree_upload_policy_t;

// Tells an owner of memory that it is not used any more. May come from any thread, and during the
// call that was given it; must not call back into this library.
typedef void (*hh_iree_release_fn_t)(void* user_data);

typedef struct hh_iree_upload_t {
  size_t struct_size;
  const void* data;                // may be NULL when `length` is 0
  size_t length;                   // must be exactly the shape's bytes
  int32_t dtype;                   // hh_iree_dtype_t
  int32_t policy;                  // hh_iree_upload_policy_t
  size_t rank;                     // 0 (a scalar) to HH_IREE_MAX_RANK
  int64_t dims[HH_IREE_MAX_RANK];  // none negative
  hh_iree_release_fn_t release;    // may be NULL when nobody needs to know
  void* release_user_data;
  bool writable;  // an imported buffer may be written by programs (never for a read-only mapping)
} hh_iree_upload_t;

// Makes a buffer with the given content.
//
// The memory must stay valid and unchanged until `release` is called. That happens exactly once:
// before this returns, when it was copied or failed; when the last user of the buffer is gone, when
// it was imported. hh_iree_buffer_origin tells which. A driver's queue is a user, too: there the
// callback may come from a thread of the driver's, a moment after the last handle was freed. With a
// NULL `upload` or a `struct_size` of zero there is nothing to call.
//
// TRAP: a program may update its arguments in place. Give no argument that a program updates memory
// that is mapped read-only: `writable` is checked by host-side writes, not by compiled code.
hh_iree_error_t* hh_iree_buffer_upload(hh_iree_device_t* device, const hh_iree_upload_t* upload,
                                       hh_iree_buffer_t** out_buffer);

// Allocates device memory of its own, filled with zero bytes: a KV cache, for example. No two buffers
// made here ever share memory.
hh_iree_error_t* hh_iree_buffer_allocate(hh_iree_device_t* device, int32_t dtype, size_t rank,
                                         const int64_t* dims, hh_iree_buffer_t** out_buffer);

// Another view of the same memory: same bytes, other dtype or shape of the same size.
hh_iree_error_t* hh_iree_buffer_alias(hh_iree_buffer_t* buffer, int32_t dtype, size_t rank,
                                      const int64_t* dims, hh_iree_buffer_t** out_buffer);

// Gives the caller's reference back; calls that have it as an argument keep it alive.
void hh_iree_buffer_free(hh_iree_buffer_t* buffer);

// None of these fails; `buffer` must not be NULL.
int32_t hh_iree_buffer_dtype(const hh_iree_buffer_t* buffer);
size_t hh_iree_buffer_rank(const hh_iree_buffer_t* buffer);
int64_t hh_iree_buffer_dim(const hh_iree_buffer_t* buffer, size_t index);  // -1 past the rank
uint64_t hh_iree_buffer_byte_length(const hh_iree_buffer_t* buffer);
int32_t hh_iree_buffer_origin(const hh_iree_buffer_t* buffer);

// The address of the content in host memory, or NULL when the device's memory is not the host's. For
// tests and diagnosis. Lives as long as the buffer.
const void* hh_iree_buffer_host_address(hh_iree_buffer_t* buffer);

// Copies `length` bytes from `offset` of the buffer to `target`. Blocks until they are there. Calls
// that write the buffer must have returned. OUT_OF_RANGE when the range leaves the buffer.
hh_iree_error_t* hh_iree_buffer_read(hh_iree_buffer_t* buffer, uint64_t offset, void* target,
                                     size_t length);

// Copies `length` bytes from `source` to `offset` of the buffer. PERMISSION_DENIED for an imported
// buffer that is not writable. Otherwise like hh_iree_buffer_read.
hh_iree_error_t* hh_iree_buffer_write(hh_iree_buffer_t* buffer, uint64_t offset, const void* source,
                                      size_t length);

// Fills the buffer with zero bytes. As hh_iree_buffer_write.
hh_iree_error_t* hh_iree_buffer_zero(hh_iree_buffer_t* buffer);

//===-- Programs ----------------------------------------------------------------------------===//

// A compiled module (.vmfb) in memory.
typedef struct hh_iree_module_t {
  size_t struct_size;
  const void* data;
  size_t length;
  // With a callback, and at an address that is a multiple of 64, the memory is used as it lies until
  // the callback is called. In every other case it is copied, and the callback, if there is one, is
  // called before the creating function returns. Exactly once, whatever happens.
  hh_iree_release_fn_t release;
  void* release_user_data;
} hh_iree_module_t;

// A named parameter: what the program declares as #flow.parameter.named<"scope"::"key">.
typedef struct hh_iree_parameter_t {
  size_t struct_size;
  const char* scope;
  const char* key;
  const void* data;
  size_t length;
  // As for modules, and at the device's import alignment. Local drivers use the memory itself;
  // others copy it to the device while the program is created.
  hh_iree_release_fn_t release;
  void* release_user_data;
} hh_iree_parameter_t;

typedef struct hh_iree_program_options_t {
  size_t struct_size;
  const hh_iree_module_t* modules;  // an array; later modules may call earlier ones
  size_t module_count;              // at least 1
  const hh_iree_parameter_t* parameters;  // an array
  size_t parameter_count;
} hh_iree_program_options_t;

// Loads modules on a device and runs their initialisers. Several programs may share one device and
// its buffers. The elements of each array lie struct_size bytes apart, and all have the same.
//
// With a NULL `out_program`, or options or an array that cannot be read (NULL, sizes that are zero or
// differ), no callback is called: there was none to be seen.
//
// INVALID_ARGUMENT for data that is not a module, NOT_FOUND for a parameter that was not given.
hh_iree_error_t* hh_iree_program_create(hh_iree_device_t* device,
                                        const hh_iree_program_options_t* options,
                                        hh_iree_program_t** out_program);

void hh_iree_program_free(hh_iree_program_t* program);

// Looks `name` ("module.function") up. NULL when it is there, a NOT_FOUND error when it is not,
// INVALID_ARGUMENT when the name has no module.
hh_iree_error_t* hh_iree_program_has_function(const hh_iree_program_t* program, const char* name);

//===-- Calls -------------------------------------------------------------------------------===//

// The kind of an argument or a result.
typedef enum hh_iree_kind_t {
  HH_IREE_KIND_NONE = 0,
  HH_IREE_KIND_BUFFER = 1,
  HH_IREE_KIND_I32 = 2,
  HH_IREE_KIND_I64 = 3,
  HH_IREE_KIND_F32 = 4,
  HH_IREE_KIND_F64 = 5,
} hh_iree_kind_t;

// Prepares calls of one function. Arguments are set by position, stay set over invocations, and may
// be changed one by one between them: a decode loop sets what changes and invokes again. Nothing is
// allocated here by a repeated invocation once the first has run.
hh_iree_error_t* hh_iree_call_create(hh_iree_program_t* program, const char* name,
                                     hh_iree_call_t** out_call);

void hh_iree_call_free(hh_iree_call_t* call);

size_t hh_iree_call_argument_count(const hh_iree_call_t* call);
int32_t hh_iree_call_argument_kind(const hh_iree_call_t* call, size_t index);
size_t hh_iree_call_result_count(const hh_iree_call_t* call);
int32_t hh_iree_call_result_kind(const hh_iree_call_t* call, size_t index);

// Sets argument `index`. The call keeps a reference on the buffer until the argument is set again,
// cleared, or the call is freed. The buffer must be of the same device. INVALID_ARGUMENT when the
// function takes another kind there, OUT_OF_RANGE when it has no such argument.
hh_iree_error_t* hh_iree_call_set_buffer(hh_iree_call_t* call, size_t index,
                                         hh_iree_buffer_t* buffer);
hh_iree_error_t* hh_iree_call_set_i32(hh_iree_call_t* call, size_t index, int32_t value);
hh_iree_error_t* hh_iree_call_set_i64(hh_iree_call_t* call, size_t index, int64_t value);
hh_iree_error_t* hh_iree_call_set_f32(hh_iree_call_t* call, size_t index, float value);

// Forgets all arguments and results, and with them the references on buffers.
void hh_iree_call_clear(hh_iree_call_t* call);

// Runs the function and waits for its end. Results of the invocation before are dropped first; those
// that were fetched live on. INVALID_ARGUMENT when an argument is not set, or has a shape or type
// that the program does not accept. After an error there are no results.
hh_iree_error_t* hh_iree_call_invoke(hh_iree_call_t* call);

// A reference on result `index` of the last invocation, owned by the caller.
hh_iree_error_t* hh_iree_call_result_buffer(hh_iree_call_t* call, size_t index,
                                            hh_iree_buffer_t** out_buffer);
hh_iree_error_t* hh_iree_call_result_i32(hh_iree_call_t* call, size_t index, int32_t* out_value);
hh_iree_error_t* hh_iree_call_result_i64(hh_iree_call_t* call, size_t index, int64_t* out_value);
hh_iree_error_t* hh_iree_call_result_f32(hh_iree_call_t* call, size_t index, float* out_value);

// Drops the last invocation's results early, so that their memory is free before the next one.
void hh_iree_call_drop_results(hh_iree_call_t* call);

#ifdef __cplusplus
}
#endif

#endif  // HALFHITCH_XLA_IREE_H_
