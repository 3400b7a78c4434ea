// What the files of the shim share. Nothing outside this folder includes it.
//
// Each file has one subject, and what a handle is made of is known to one file alone; the others
// ask through the functions below. From the bottom up:
//
//   error.c          errors, from text or from IREE's statuses
//   abi.c            versions, and structs of a size that the caller chose
//   memory.c         copies in host memory, and whom to tell when lent memory is free again
//   runtime.c        the runtime: drivers, log, VM instance
//   device_list.c    what a driver enumerates, and how a device is chosen from it
//   task_device.c    local-task devices, with their workers
//   device.c         opening a device, and what it says of itself
//   device_memory.c  how much memory a device has and uses
//   types.c          element types and shapes
//   buffer.c         buffers: allocation, views, properties
//   upload.c         buffers with a content: imported or copied
//   transfer.c       reads and writes of a buffer's bytes
//   parameters.c     named parameters as a module of IREE's
//   program.c        loading modules, and looking their functions up
//   call.c           arguments, invocation, results
//
// Conventions, besides those of xla_iree.h:
//
// * Names. `hh_iree_` is public; `hh_` is declared here, or static. All that is declared here has
//   hidden visibility, so that no library exports it, and run-tests.sh refuses a function that is
//   neither static nor declared.
// * Arguments are checked where they enter, in the public functions. No function here takes NULL
//   where it does not say so.
// * Ownership. A returned pointer is borrowed from the handle that was asked, for as long as that
//   lives, unless the comment says that the caller owns it. Errors are always the caller's.
// * Statuses. An iree_status_t is consumed exactly once: returned, freed, or made an error.

#ifndef HALFHITCH_XLA_IREE_INTERNAL_H_
#define HALFHITCH_XLA_IREE_INTERNAL_H_

#include "iree/base/api.h"
#include "iree/hal/api.h"
#include "iree/vm/api.h"

#include "xla_iree.h"

#pragma GCC visibility push(hidden)

// What the local drivers import must lie at a multiple of this, and so must a module's flatbuffer.
#define HH_LOCAL_ALIGNMENT 64

// Where everything that IREE makes for the shim is allocated.
static inline iree_allocator_t hh_allocator(void) { return iree_allocator_system(); }

//===-- Errors: error.c ---------------------------------------------------------------------===//

// An error with this code and text.
__attribute__((format(printf, 2, 3))) hh_iree_error_t* hh_error(int32_t code, const char* format,
                                                                ...);

// The error for a lack of host memory. It needs none itself, and cannot fail.
hh_iree_error_t* hh_error_out_of_memory(void);

// NULL when `status` is OK, else an error with its code and all its annotations. Consumes `status`.
hh_iree_error_t* hh_error_from_status(iree_status_t status);

// Returns INVALID_ARGUMENT from the function around it when `pointer` is NULL.
#define HH_NULL_CHECK(pointer)                                                         \
  do {                                                                                 \
    if (!(pointer))                                                                    \
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: %s is NULL", __func__, #pointer); \
  } while (0)

//===-- Versioned structs: abi.c ------------------------------------------------------------===//

// Reads a versioned struct of the caller's size into `target`; what the caller lacks is zero.
// `source` may be NULL, which is an error that calls the struct `what`.
hh_iree_error_t* hh_read_struct(const char* what, const void* source, void* target, size_t size);

// Writes `source` to the caller's versioned struct, as far as the caller knows it. `target` may be
// NULL, which is an error.
hh_iree_error_t* hh_write_struct(const char* what, const void* source, void* target, size_t size);

// Copies an array of versioned structs of the caller's size into one of ours, which the caller owns
// and gives to free(): NULL for no elements, and after an error. `source` may be NULL.
hh_iree_error_t* hh_read_array(const char* what, const void* source, size_t count, size_t size,
                               void** out_array);

//===-- Host memory: memory.c ---------------------------------------------------------------===//

// A NUL-terminated copy, which the caller gives to free(); NULL for lack of memory.
char* hh_string(const char* data, size_t length);

// `alignment` is a power of two.
bool hh_is_aligned(const void* pointer, size_t alignment);

// Tells the owner of lent memory that it is not used any more. `release` may be NULL.
void hh_release_now(hh_iree_release_fn_t release, void* user_data);

// Remembers whom to tell, or what to free, when memory that IREE was given is not used any more.
//
// While the call that hands the memory to IREE runs, firing only marks the keeper: whether IREE has
// called back before it reported a failure is up to each driver. hh_keeper_settle sorts it out.
typedef struct hh_keeper_t hh_keeper_t;

// A keeper with nobody to tell yet, in its handing-over state and owned by the caller; NULL for
// lack of memory.
hh_keeper_t* hh_keeper_create(void);

// A keeper for the given memory where it can stay, which it can with a callback and an alignment
// that fits; else for an aligned copy of it, to which *data is set (then the owner is told at once).
// In its handing-over state and owned by the caller; NULL for lack of memory, with the owner told.
hh_keeper_t* hh_keep_aligned(const void** data, size_t length, size_t alignment,
                             hh_iree_release_fn_t release, void* user_data);

// Sets whom to tell. `release` may be NULL.
void hh_keeper_tell(hh_keeper_t* keeper, hh_iree_release_fn_t release, void* user_data);

// For IREE to call: the memory is not used any more. Consumes the keeper, unless it is handed over.
void hh_keeper_fire(hh_keeper_t* keeper);

// Ends the handing over. Consumes the keeper: from here on it belongs to IREE, or is gone.
void hh_keeper_settle(hh_keeper_t* keeper, bool handed_over);

//===-- Runtime: runtime.c ------------------------------------------------------------------===//

// One more reference, which the caller gives to hh_iree_runtime_free.
hh_iree_runtime_t* hh_runtime_retain(hh_iree_runtime_t* runtime);

iree_hal_driver_registry_t* hh_runtime_registry(hh_iree_runtime_t* runtime);
iree_vm_instance_t* hh_runtime_instance(hh_iree_runtime_t* runtime);

// NOT_FOUND, with the names that there are, when no driver of this name is linked in.
hh_iree_error_t* hh_runtime_check_driver(const hh_iree_runtime_t* runtime, const char* driver);

// True when somebody listens, so that it is worth making up a text.
bool hh_runtime_logs(const hh_iree_runtime_t* runtime);

// Tells the runtime's listener, if there is one. Texts are cut at 511 bytes.
__attribute__((format(printf, 3, 4))) void hh_log(const hh_iree_runtime_t* runtime, int32_t level,
                                                  const char* format, ...);

//===-- Device lists: device_list.c ---------------------------------------------------------===//

// The local drivers always have one device, and creating the driver would start its threads.
bool hh_is_local_driver(const char* name);

// The index that `selector` means: nothing or "default", an ordinal, or an id. It may be NULL.
hh_iree_error_t* hh_device_list_select(const hh_iree_device_list_t* list, const char* selector,
                                       size_t* out_index);

// Creates the device at `index` with the driver that listed it. The caller owns the device.
iree_status_t hh_device_list_open(const hh_iree_device_list_t* list, size_t index,
                                  hh_iree_runtime_t* runtime,
                                  const iree_hal_device_create_params_t* params,
                                  iree_hal_device_t** out_device);

// Moves the strings of the device at `index` to the caller, who gives them to free(). After that
// the list is good for hh_iree_device_list_free alone.
void hh_device_list_take(hh_iree_device_list_t* list, size_t index, char** out_driver,
                         char** out_id, char** out_name);

//===-- local-task: task_device.c -----------------------------------------------------------===//

// The most workers that a device can have.
#define HH_MAX_WORKERS 64

// A local-task device with exactly the workers that were asked for, at most HH_MAX_WORKERS; the
// caller owns it. The driver of the same name takes its topology from process-wide flags, so it
// cannot be used for this.
iree_status_t hh_create_task_device(const hh_iree_device_options_t* options,
                                    const iree_hal_device_create_params_t* create_params,
                                    iree_hal_device_t** out_device);

//===-- Devices: device.c -------------------------------------------------------------------===//

// One more reference, which the caller gives to hh_iree_device_free.
hh_iree_device_t* hh_device_retain(hh_iree_device_t* device);

hh_iree_runtime_t* hh_device_runtime(const hh_iree_device_t* device);
iree_hal_device_t* hh_device_hal(const hh_iree_device_t* device);

// The group of just this device, for programs to be bound to.
iree_hal_device_group_t* hh_device_group(const hh_iree_device_t* device);

const char* hh_device_driver(const hh_iree_device_t* device);
size_t hh_device_ordinal(const hh_iree_device_t* device);

//===-- Types and shapes: types.c -----------------------------------------------------------===//

// IREE's name for a dtype that hh_shape or hh_iree_dtype_bits has accepted.
iree_hal_element_type_t hh_dtype_element(int32_t dtype);

// HH_IREE_DTYPE_NONE where there is no dtype for it.
int32_t hh_dtype_from_element(iree_hal_element_type_t element);

// Checks a shape, converts it, and computes its bytes. `dims` may be NULL for rank 0, which is
// checked here; `out_dims` has room for HH_IREE_MAX_RANK. The bytes are at most SIZE_MAX / 2.
hh_iree_error_t* hh_shape(int32_t dtype, size_t rank, const int64_t* dims, iree_hal_dim_t* out_dims,
                          size_t* out_bytes);

//===-- Buffers: buffer.c, transfer.c -------------------------------------------------------===//

// A buffer around `view`, owned by the caller. Takes references of its own on both the view and the
// device.
hh_iree_error_t* hh_buffer_wrap(hh_iree_device_t* device, iree_hal_buffer_view_t* view,
                                int32_t origin, bool read_only, hh_iree_buffer_t** out_buffer);

// How memory of the device's own is asked for.
iree_hal_buffer_params_t hh_device_params(void);

hh_iree_device_t* hh_buffer_device(const hh_iree_buffer_t* buffer);
iree_hal_buffer_view_t* hh_buffer_view(const hh_iree_buffer_t* buffer);

// What the view is a view of.
iree_hal_buffer_t* hh_buffer_memory(const hh_iree_buffer_t* buffer);

// True for imported memory that was not declared writable.
bool hh_buffer_is_read_only(const hh_iree_buffer_t* buffer);

// In transfer.c: fills the first `length` bytes with zeros, on the host where it can see the
// memory, else on a queue, and waits for it.
iree_status_t hh_zero(hh_iree_device_t* device, iree_hal_buffer_t* memory,
                      iree_device_size_t length);

//===-- Programs: parameters.c, program.c ---------------------------------------------------===//

// In parameters.c: the module that gives these parameters to programs on `device`, owned by the
// caller. There is one even without parameters, so that a program which wants some gets an error
// that says so. Consumes the callback of every parameter, whatever happens.
iree_status_t hh_parameter_module_create(hh_iree_device_t* device,
                                         const hh_iree_parameter_t* parameters, size_t count,
                                         iree_vm_module_t** out_module);

// One more reference, which the caller gives to hh_iree_program_free.
hh_iree_program_t* hh_program_retain(hh_iree_program_t* program);

hh_iree_device_t* hh_program_device(const hh_iree_program_t* program);
iree_vm_context_t* hh_program_context(const hh_iree_program_t* program);

// Looks "module.function" up. The function is valid as long as the program.
hh_iree_error_t* hh_program_resolve(const hh_iree_program_t* program, const char* name,
                                    iree_vm_function_t* out_function);

#pragma GCC visibility pop

#endif  // HALFHITCH_XLA_IREE_INTERNAL_H_
