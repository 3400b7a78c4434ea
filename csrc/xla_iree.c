// The implementation of xla_iree.h: the only code of Halfhitch that includes IREE's headers.

#include "xla_iree.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/hal/drivers/init.h"
#include "iree/hal/drivers/local_task/task_device.h"
#include "iree/hal/local/loaders/registration/init.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/hal/module.h"
#include "iree/modules/hal/types.h"
#include "iree/modules/io/parameters/module.h"
#include "iree/runtime/api.h"
#include "iree/task/api.h"
#include "iree/vm/bytecode/module.h"

#ifndef HH_IREE_VERSION
#error "HH_IREE_VERSION must be the version in the runtime's stamp, as a string"
#endif

// A module's flatbuffer must lie at a multiple of this, and so must what the local drivers import.
#define HH_LOCAL_ALIGNMENT 64
#define HH_MAX_WORKERS 64
#define HH_MAX_DRIVERS 16
#define HH_MAX_HEAPS 32
#define HH_MAX_SCOPES 16

static iree_allocator_t hh_allocator(void) { return iree_allocator_system(); }

//===-- Versions ----------------------------------------------------------------------------===//

const char* hh_iree_version(void) { return HH_IREE_VERSION; }

uint32_t hh_iree_abi_version(void) { return HH_IREE_ABI_VERSION; }

size_t hh_iree_abi_sizes(size_t* sizes, size_t capacity) {
  static const size_t all[] = {
      sizeof(hh_iree_runtime_options_t), sizeof(hh_iree_device_info_t),
      sizeof(hh_iree_device_options_t),  sizeof(hh_iree_memory_stats_t),
      sizeof(hh_iree_upload_t),          sizeof(hh_iree_module_t),
      sizeof(hh_iree_parameter_t),       sizeof(hh_iree_program_options_t),
  };
  const size_t count = sizeof(all) / sizeof(all[0]);
  for (size_t i = 0; sizes && i < count && i < capacity; ++i) sizes[i] = all[i];
  return count;
}

//===-- Errors ------------------------------------------------------------------------------===//

struct hh_iree_error_t {
  int32_t code;
  char* message;
};

// What is returned when there is no memory for an error.
static char hh_out_of_memory_text[] = "RESOURCE_EXHAUSTED; out of host memory";
static hh_iree_error_t hh_out_of_memory = {HH_IREE_CODE_RESOURCE_EXHAUSTED, hh_out_of_memory_text};

int32_t hh_iree_error_code(const hh_iree_error_t* error) { return error->code; }

const char* hh_iree_error_message(const hh_iree_error_t* error) { return error->message; }

void hh_iree_error_free(hh_iree_error_t* error) {
  if (!error || error == &hh_out_of_memory) return;
  free(error->message);
  free(error);
}

// Takes ownership of `message`, which may be NULL for lack of memory.
static hh_iree_error_t* hh_error_take(int32_t code, char* message) {
  hh_iree_error_t* error = message ? malloc(sizeof(*error)) : NULL;
  if (!error) {
    free(message);
    return &hh_out_of_memory;
  }
  error->code = code;
  error->message = message;
  return error;
}

__attribute__((format(printf, 2, 3))) static hh_iree_error_t* hh_error(int32_t code,
                                                                       const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char* message = length < 0 ? NULL : malloc((size_t)length + 1);
  if (message) vsnprintf(message, (size_t)length + 1, format, again);
  va_end(again);
  return hh_error_take(code, message);
}

// Consumes `status`.
static hh_iree_error_t* hh_error_from_status(iree_status_t status) {
  if (iree_status_is_ok(status)) return NULL;
  const int32_t code = (int32_t)iree_status_code(status);
  iree_host_size_t length = 0;
  char* message = NULL;
  if (iree_status_format(status, 0, NULL, &length)) {
    message = malloc(length + 1);
    if (message && !iree_status_format(status, length + 1, message, &length)) message[0] = '\0';
  }
  iree_status_free(status);
  return hh_error_take(code, message);
}

#define HH_NULL_CHECK(pointer)                                                         \
  do {                                                                                 \
    if (!(pointer))                                                                    \
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: %s is NULL", __func__, #pointer); \
  } while (0)

// Reads a versioned struct of the caller's size into `target`; what the caller lacks is zero.
static hh_iree_error_t* hh_read_struct(const char* what, const void* source, void* target,
                                       size_t size) {
  size_t given = 0;
  memset(target, 0, size);
  if (!source) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s is NULL", what);
  memcpy(&given, source, sizeof(given));
  if (given < sizeof(given)) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: struct_size is not set", what);
  }
  memcpy(target, source, given < size ? given : size);
  return NULL;
}

// Writes `source` to the caller's versioned struct, as far as the caller knows it.
static hh_iree_error_t* hh_write_struct(const char* what, const void* source, void* target,
                                        size_t size) {
  size_t given = 0;
  if (!target) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s is NULL", what);
  memcpy(&given, target, sizeof(given));
  if (given < sizeof(given)) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: struct_size is not set", what);
  }
  const size_t head = sizeof(given);
  memcpy((char*)target + head, (const char*)source + head, (given < size ? given : size) - head);
  return NULL;
}

//===-- Keepers -----------------------------------------------------------------------------===//

// Remembers whom to tell, or what to free, when memory that IREE was given is not used any more.
//
// While the call that hands the memory to IREE runs, firing only marks the keeper: whether IREE has
// called back before it reported a failure is up to each driver. hh_keeper_settle sorts it out.
typedef struct hh_keeper_t {
  hh_iree_release_fn_t release;
  void* user_data;
  void* owned;   // freed besides, may be NULL
  bool handing;  // the call that hands over is running, on this thread
  bool fired;
} hh_keeper_t;

static hh_keeper_t* hh_keeper_create(hh_iree_release_fn_t release, void* user_data, void* owned) {
  hh_keeper_t* keeper = malloc(sizeof(*keeper));
  if (keeper) *keeper = (hh_keeper_t){release, user_data, owned, true, false};
  return keeper;
}

static void hh_keeper_run(hh_keeper_t* keeper) {
  free(keeper->owned);
  if (keeper->release) keeper->release(keeper->user_data);
}

static void hh_keeper_fire(hh_keeper_t* keeper) {
  if (keeper->handing) {
    keeper->fired = true;
    return;
  }
  hh_keeper_run(keeper);
  free(keeper);
}

// Ends the handing over: from here on the keeper belongs to IREE, or is gone.
static void hh_keeper_settle(hh_keeper_t* keeper, bool handed_over) {
  keeper->handing = false;
  if (!handed_over || keeper->fired) hh_keeper_fire(keeper);
}

static void hh_release_now(hh_iree_release_fn_t release, void* user_data) {
  if (release) release(user_data);
}

static bool hh_is_aligned(const void* pointer, size_t alignment) {
  return ((uintptr_t)pointer & (alignment - 1)) == 0;
}

// A copy of `data` at a multiple of `alignment`; NULL for lack of memory. Freed with free().
static void* hh_aligned_copy(const void* data, size_t length, size_t alignment) {
  if (length > SIZE_MAX - alignment) return NULL;
  const size_t rounded = length == 0 ? alignment : (length + alignment - 1) & ~(alignment - 1);
  void* copy = aligned_alloc(alignment, rounded);
  if (copy && length) memcpy(copy, data, length);
  return copy;
}

// The given memory where it can stay, else an aligned copy of it (then the owner is told at once).
// The keeper is in its handing-over state; NULL for lack of memory, with the owner told.
static hh_keeper_t* hh_keep_aligned(const void** data, size_t length, size_t alignment,
                                    hh_iree_release_fn_t release, void* user_data) {
  hh_keeper_t* keeper = NULL;
  if (release && hh_is_aligned(*data, alignment)) {
    keeper = hh_keeper_create(release, user_data, NULL);
    if (!keeper) hh_release_now(release, user_data);
    return keeper;
  }
  void* copy = hh_aligned_copy(*data, length, alignment);
  hh_release_now(release, user_data);
  if (!copy) return NULL;
  keeper = hh_keeper_create(NULL, NULL, copy);
  if (!keeper) {
    free(copy);
    return NULL;
  }
  *data = copy;
  return keeper;
}

//===-- Runtime -----------------------------------------------------------------------------===//

struct hh_iree_runtime_t {
  atomic_size_t references;
  hh_iree_log_fn_t log;
  void* log_user_data;
  iree_hal_driver_registry_t* registry;
  iree_vm_instance_t* instance;
  size_t driver_count;
  char* drivers[HH_MAX_DRIVERS];
};

__attribute__((format(printf, 3, 4))) static void hh_log(const hh_iree_runtime_t* runtime,
                                                         int32_t level, const char* format, ...) {
  if (!runtime->log) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  runtime->log(runtime->log_user_data, level, text);
}

static hh_iree_runtime_t* hh_runtime_retain(hh_iree_runtime_t* runtime) {
  atomic_fetch_add_explicit(&runtime->references, 1, memory_order_relaxed);
  return runtime;
}

void hh_iree_runtime_free(hh_iree_runtime_t* runtime) {
  if (!runtime) return;
  if (atomic_fetch_sub_explicit(&runtime->references, 1, memory_order_acq_rel) != 1) return;
  iree_vm_instance_release(runtime->instance);
  if (runtime->registry) iree_hal_driver_registry_free(runtime->registry);
  for (size_t i = 0; i < runtime->driver_count; ++i) free(runtime->drivers[i]);
  free(runtime);
}

static char* hh_string(const char* data, size_t length) {
  char* copy = malloc(length + 1);
  if (!copy) return NULL;
  if (length) memcpy(copy, data, length);
  copy[length] = '\0';
  return copy;
}

static hh_iree_error_t* hh_runtime_name_drivers(hh_iree_runtime_t* runtime) {
  iree_host_size_t count = 0;
  iree_hal_driver_info_t* infos = NULL;
  hh_iree_error_t* error = hh_error_from_status(
      iree_hal_driver_registry_enumerate(runtime->registry, hh_allocator(), &count, &infos));
  if (error) return error;
  for (size_t i = 0; i < count && i < HH_MAX_DRIVERS; ++i) {
    char* name = hh_string(infos[i].driver_name.data, infos[i].driver_name.size);
    if (!name) {
      error = &hh_out_of_memory;
      break;
    }
    runtime->drivers[runtime->driver_count++] = name;
  }
  iree_allocator_free(hh_allocator(), infos);
  return error;
}

hh_iree_error_t* hh_iree_runtime_create(const hh_iree_runtime_options_t* options,
                                        hh_iree_runtime_t** out_runtime) {
  HH_NULL_CHECK(out_runtime);
  *out_runtime = NULL;
  hh_iree_runtime_options_t given = {0};
  if (options) {
    hh_iree_error_t* error =
        hh_read_struct("runtime options", options, &given, sizeof(given));
    if (error) return error;
  }
  hh_iree_runtime_t* runtime = calloc(1, sizeof(*runtime));
  if (!runtime) return &hh_out_of_memory;
  atomic_init(&runtime->references, 1);
  runtime->log = given.log;
  runtime->log_user_data = given.log_user_data;
  iree_status_t status = iree_hal_driver_registry_allocate(hh_allocator(), &runtime->registry);
  if (iree_status_is_ok(status)) status = iree_hal_register_all_available_drivers(runtime->registry);
  if (iree_status_is_ok(status)) {
    status = iree_vm_instance_create(IREE_VM_TYPE_CAPACITY_DEFAULT, hh_allocator(),
                                     &runtime->instance);
  }
  if (iree_status_is_ok(status)) status = iree_hal_module_register_all_types(runtime->instance);
  hh_iree_error_t* error = hh_error_from_status(status);
  if (!error) error = hh_runtime_name_drivers(runtime);
  if (error) {
    hh_iree_runtime_free(runtime);
    return error;
  }
  *out_runtime = runtime;
  return NULL;
}

const char* hh_iree_runtime_driver(const hh_iree_runtime_t* runtime, size_t index) {
  return runtime && index < runtime->driver_count ? runtime->drivers[index] : NULL;
}

//===-- Device lists ------------------------------------------------------------------------===//

typedef struct hh_device_entry_t {
  char* id;
  char* name;
  iree_hal_device_id_t native;
} hh_device_entry_t;

struct hh_iree_device_list_t {
  char* driver_name;
  iree_hal_driver_t* driver;  // NULL for the local drivers
  size_t count;
  hh_device_entry_t* entries;
};

// The local drivers always have one device, and creating the driver would start its threads.
static bool hh_is_local_driver(const char* name) {
  return strcmp(name, "local-task") == 0 || strcmp(name, "local-sync") == 0;
}

static hh_iree_error_t* hh_check_driver(const hh_iree_runtime_t* runtime, const char* driver) {
  char known[256] = "";
  size_t used = 0;
  for (size_t i = 0; i < runtime->driver_count; ++i) {
    if (strcmp(runtime->drivers[i], driver) == 0) return NULL;
    const int n = snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
                           runtime->drivers[i]);
    if (n > 0) used = used + (size_t)n < sizeof(known) ? used + (size_t)n : sizeof(known) - 1;
  }
  return hh_error(HH_IREE_CODE_NOT_FOUND, "no driver '%s' is linked in; there are: %s", driver,
                  known);
}

void hh_iree_device_list_free(hh_iree_device_list_t* list) {
  if (!list) return;
  for (size_t i = 0; list->entries && i < list->count; ++i) {
    free(list->entries[i].id);
    free(list->entries[i].name);
  }
  free(list->entries);
  free(list->driver_name);
  iree_hal_driver_release(list->driver);
  free(list);
}

// Fills `list` with what the driver enumerates.
static hh_iree_error_t* hh_device_list_fill(hh_iree_runtime_t* runtime,
                                            hh_iree_device_list_t* list) {
  iree_host_size_t count = 1;
  iree_hal_device_info_t* infos = NULL;
  if (!hh_is_local_driver(list->driver_name)) {
    iree_status_t status = iree_hal_driver_registry_try_create(
        runtime->registry, iree_make_cstring_view(list->driver_name), hh_allocator(),
        &list->driver);
    if (iree_status_is_ok(status)) {
      status = iree_hal_driver_query_available_devices(list->driver, hh_allocator(), &count, &infos);
    }
    if (!iree_status_is_ok(status)) return hh_error_from_status(status);
  }
  hh_iree_error_t* error = NULL;
  list->entries = calloc(count ? count : 1, sizeof(*list->entries));
  if (!list->entries) error = &hh_out_of_memory;
  for (size_t i = 0; !error && i < count; ++i) {
    hh_device_entry_t* entry = &list->entries[i];
    const bool has_path = infos && infos[i].path.size > 0;
    entry->id = has_path ? hh_string(infos[i].path.data, infos[i].path.size)
                         : hh_string("default", strlen("default"));
    entry->name = infos ? hh_string(infos[i].name.data, infos[i].name.size)
                        : hh_string("host CPU", strlen("host CPU"));
    entry->native = infos ? infos[i].device_id : IREE_HAL_DEVICE_ID_DEFAULT;
    list->count = i + 1;
    if (!entry->id || !entry->name) error = &hh_out_of_memory;
  }
  if (infos) iree_allocator_free(hh_allocator(), infos);
  return error;
}

hh_iree_error_t* hh_iree_device_list_create(hh_iree_runtime_t* runtime, const char* driver,
                                            hh_iree_device_list_t** out_list) {
  HH_NULL_CHECK(out_list);
  *out_list = NULL;
  HH_NULL_CHECK(runtime);
  HH_NULL_CHECK(driver);
  hh_iree_error_t* error = hh_check_driver(runtime, driver);
  if (error) return error;
  hh_iree_device_list_t* list = calloc(1, sizeof(*list));
  if (!list) return &hh_out_of_memory;
  list->driver_name = hh_string(driver, strlen(driver));
  error = list->driver_name ? hh_device_list_fill(runtime, list) : &hh_out_of_memory;
  if (error) {
    hh_iree_device_list_free(list);
    return error;
  }
  *out_list = list;
  return NULL;
}

size_t hh_iree_device_list_count(const hh_iree_device_list_t* list) {
  return list ? list->count : 0;
}

hh_iree_error_t* hh_iree_device_list_get(const hh_iree_device_list_t* list, size_t index,
                                         hh_iree_device_info_t* out_info) {
  HH_NULL_CHECK(list);
  if (index >= list->count) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "device %zu of %zu", index, list->count);
  }
  const hh_iree_device_info_t info = {
      .driver = list->driver_name,
      .id = list->entries[index].id,
      .name = list->entries[index].name,
      .ordinal = index,
  };
  return hh_write_struct("device info", &info, out_info, sizeof(info));
}

// The index that `selector` means: nothing or "default", an ordinal, or an id.
static hh_iree_error_t* hh_device_list_select(const hh_iree_device_list_t* list,
                                              const char* selector, size_t* out_index) {
  *out_index = 0;
  const bool is_default = !selector || !selector[0] || strcmp(selector, "default") == 0;
  if (list->count > 0 && is_default) return NULL;
  for (size_t i = 0; !is_default && i < list->count; ++i) {
    char ordinal[24];
    snprintf(ordinal, sizeof(ordinal), "%zu", i);
    if (strcmp(selector, ordinal) == 0 || strcmp(selector, list->entries[i].id) == 0) {
      *out_index = i;
      return NULL;
    }
  }
  char known[512] = "";
  size_t used = 0;
  for (size_t i = 0; i < list->count && used + 1 < sizeof(known); ++i) {
    const int n = snprintf(known + used, sizeof(known) - used, "%s%zu (%s, %s)", i ? "; " : "", i,
                           list->entries[i].id, list->entries[i].name);
    if (n > 0) used += (size_t)n;
  }
  return hh_error(HH_IREE_CODE_NOT_FOUND, "driver '%s' has no device '%s'; there are: %s",
                  list->driver_name, is_default ? "default" : selector,
                  list->count ? known : "none");
}

//===-- Devices -----------------------------------------------------------------------------===//

struct hh_iree_device_t {
  atomic_size_t references;
  hh_iree_runtime_t* runtime;
  iree_hal_device_t* hal;
  iree_hal_device_group_t* group;  // just this device; what programs are bound to
  char* driver;
  char* id;
  char* name;
  size_t ordinal;
  size_t import_alignment;
  bool shares_host_memory;
};

static hh_iree_device_t* hh_device_retain(hh_iree_device_t* device) {
  atomic_fetch_add_explicit(&device->references, 1, memory_order_relaxed);
  return device;
}

void hh_iree_device_free(hh_iree_device_t* device) {
  if (!device) return;
  if (atomic_fetch_sub_explicit(&device->references, 1, memory_order_acq_rel) != 1) return;
  iree_hal_device_group_release(device->group);
  iree_hal_device_release(device->hal);
  free(device->driver);
  free(device->id);
  free(device->name);
  hh_iree_runtime_free(device->runtime);
  free(device);
}

// A local-task device with exactly the workers that were asked for. The driver of the same name
// takes its topology from process-wide flags, so it cannot be used for this.
static iree_status_t hh_create_task_device(const hh_iree_device_options_t* options,
                                           const iree_hal_device_create_params_t* create_params,
                                           iree_hal_device_t** out_device) {
  iree_task_executor_options_t executor_options;
  iree_task_executor_options_initialize(&executor_options);
  executor_options.worker_spin_ns = (iree_duration_t)options->worker_spin_us * 1000;
  iree_task_topology_t topology;
  iree_status_t status = iree_ok_status();
  if (options->workers > 0) {
    iree_task_topology_initialize_from_group_count(options->workers, &topology);
  } else {
    status = iree_task_topology_initialize_from_physical_cores(
        IREE_TASK_TOPOLOGY_NODE_ID_ANY, IREE_TASK_TOPOLOGY_PERFORMANCE_LEVEL_ANY,
        IREE_TASK_TOPOLOGY_DISTRIBUTION_COMPACT, HH_MAX_WORKERS, &topology);
  }
  if (!iree_status_is_ok(status)) return status;
  iree_task_executor_t* executor = NULL;
  status = iree_task_executor_create(executor_options, &topology, hh_allocator(), &executor);
  iree_task_topology_deinitialize(&topology);

  iree_hal_executable_loader_t* loaders[8] = {NULL};
  iree_host_size_t loader_count = 0;
  if (iree_status_is_ok(status)) {
    status = iree_hal_create_all_available_executable_loaders(
        /*plugin_manager=*/NULL, IREE_ARRAYSIZE(loaders), &loader_count, loaders, hh_allocator());
  }
  iree_hal_allocator_t* allocator = NULL;
  if (iree_status_is_ok(status)) {
    status = iree_hal_allocator_create_heap(IREE_SV("local"), hh_allocator(), hh_allocator(),
                                            &allocator);
  }
  if (iree_status_is_ok(status)) {
    iree_hal_task_device_params_t params;
    iree_hal_task_device_params_initialize(&params);
    status = iree_hal_task_device_create(IREE_SV("local-task"), &params, 1, &executor, loader_count,
                                         loaders, allocator, create_params, hh_allocator(),
                                         out_device);
  }
  iree_hal_allocator_release(allocator);
  for (iree_host_size_t i = 0; i < loader_count; ++i) {
    iree_hal_executable_loader_release(loaders[i]);
  }
  iree_task_executor_release(executor);
  return status;
}

static iree_status_t hh_create_hal_device(hh_iree_runtime_t* runtime,
                                          const hh_iree_device_options_t* options,
                                          const hh_iree_device_list_t* list, size_t index,
                                          iree_hal_device_t** out_device) {
  iree_async_proactor_pool_t* pool = NULL;
  iree_status_t status = iree_async_proactor_pool_create(
      1, /*node_ids=*/NULL, iree_async_proactor_pool_options_default(), hh_allocator(), &pool);
  iree_hal_device_create_params_t create_params = iree_hal_device_create_params_default();
  create_params.proactor_pool = pool;
  if (iree_status_is_ok(status) && strcmp(options->driver, "local-task") == 0) {
    status = hh_create_task_device(options, &create_params, out_device);
  } else if (iree_status_is_ok(status)) {
    iree_hal_driver_t* driver = list->driver;
    iree_hal_driver_retain(driver);
    if (!driver) {
      status = iree_hal_driver_registry_try_create(
          runtime->registry, iree_make_cstring_view(options->driver), hh_allocator(), &driver);
    }
    if (iree_status_is_ok(status)) {
      status = iree_hal_driver_create_device_by_id(driver, list->entries[index].native, 0, NULL,
                                                   &create_params, hh_allocator(), out_device);
    }
    iree_hal_driver_release(driver);
  }
  iree_async_proactor_pool_release(pool);
  return status;
}

// One group for the device's whole life: making a second one leaks the first one's tracker.
static iree_status_t hh_create_group(hh_iree_device_t* device) {
  iree_async_frontier_tracker_t* tracker = NULL;
  iree_status_t status = iree_async_frontier_tracker_create(
      iree_async_frontier_tracker_options_default(), hh_allocator(), &tracker);
  if (iree_status_is_ok(status)) {
    status = iree_hal_device_group_create_from_device(device->hal, tracker, hh_allocator(),
                                                      &device->group);
  }
  iree_async_frontier_tracker_release(tracker);
  return status;
}

static size_t hh_page_size(void) {
  const long size = sysconf(_SC_PAGESIZE);
  return size > 4096 ? (size_t)size : 4096;
}

hh_iree_error_t* hh_iree_device_create(hh_iree_runtime_t* runtime,
                                       const hh_iree_device_options_t* options,
                                       hh_iree_device_t** out_device) {
  HH_NULL_CHECK(out_device);
  *out_device = NULL;
  HH_NULL_CHECK(runtime);
  hh_iree_device_options_t given;
  hh_iree_error_t* error = hh_read_struct("device options", options, &given, sizeof(given));
  if (error) return error;
  HH_NULL_CHECK(given.driver);
  if (given.workers > HH_MAX_WORKERS) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%u workers; at most %d are possible",
                    given.workers, HH_MAX_WORKERS);
  }
  hh_iree_device_list_t* list = NULL;
  error = hh_iree_device_list_create(runtime, given.driver, &list);
  if (error) return error;
  size_t index = 0;
  error = hh_device_list_select(list, given.device, &index);
  hh_iree_device_t* device = NULL;
  if (!error) {
    device = calloc(1, sizeof(*device));
    if (!device) error = &hh_out_of_memory;
  }
  if (!error) {
    atomic_init(&device->references, 1);
    device->runtime = hh_runtime_retain(runtime);
    device->ordinal = index;
    device->shares_host_memory =
        hh_is_local_driver(given.driver) || strcmp(given.driver, "metal") == 0;
    device->import_alignment =
        hh_is_local_driver(given.driver) ? HH_LOCAL_ALIGNMENT : hh_page_size();
    // The list is about to go: its strings move over.
    device->driver = list->driver_name;
    device->id = list->entries[index].id;
    device->name = list->entries[index].name;
    list->entries[index].id = NULL;
    list->entries[index].name = NULL;
    given.driver = device->driver;
    list->driver_name = NULL;
    iree_status_t status = hh_create_hal_device(runtime, &given, list, index, &device->hal);
    if (iree_status_is_ok(status)) status = hh_create_group(device);
    error = hh_error_from_status(status);
  }
  hh_iree_device_list_free(list);
  if (error) {
    hh_iree_device_free(device);
    return error;
  }
  hh_log(runtime, HH_IREE_LOG_INFO, "opened %s:%zu (%s, %s)", device->driver, device->ordinal,
         device->id, device->name);
  *out_device = device;
  return NULL;
}

hh_iree_error_t* hh_iree_device_info(const hh_iree_device_t* device,
                                     hh_iree_device_info_t* out_info) {
  HH_NULL_CHECK(device);
  const hh_iree_device_info_t info = {
      .driver = device->driver,
      .id = device->id,
      .name = device->name,
      .ordinal = device->ordinal,
  };
  return hh_write_struct("device info", &info, out_info, sizeof(info));
}

size_t hh_iree_device_import_alignment(const hh_iree_device_t* device) {
  return device->import_alignment;
}

bool hh_iree_device_shares_host_memory(const hh_iree_device_t* device) {
  return device->shares_host_memory;
}

hh_iree_error_t* hh_iree_device_query(const hh_iree_device_t* device, const char* category,
                                      const char* key, int64_t* out_value) {
  HH_NULL_CHECK(out_value);
  *out_value = 0;
  HH_NULL_CHECK(device);
  HH_NULL_CHECK(category);
  HH_NULL_CHECK(key);
  return hh_error_from_status(iree_hal_device_query_i64(
      device->hal, iree_make_cstring_view(category), iree_make_cstring_view(key), out_value));
}

// What the operating system says of the host's memory; zeros where it does not.
static void hh_host_memory(uint64_t* out_total, uint64_t* out_free) {
  *out_total = *out_free = 0;
  const long page = sysconf(_SC_PAGESIZE);
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (page > 0 && pages > 0) *out_total = (uint64_t)pages * (uint64_t)page;
  FILE* file = fopen("/proc/meminfo", "r");
  if (!file) return;
  char line[128];
  unsigned long long kib = 0;
  while (fgets(line, sizeof(line), file)) {
    if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
      *out_free = (uint64_t)kib * 1024;
      break;
    }
  }
  fclose(file);
}

hh_iree_error_t* hh_iree_device_memory(const hh_iree_device_t* device,
                                       hh_iree_memory_stats_t* out_stats) {
  HH_NULL_CHECK(device);
  iree_hal_allocator_t* allocator = iree_hal_device_allocator(device->hal);
  hh_iree_memory_stats_t stats = {0};
  iree_hal_allocator_statistics_t counted;
  memset(&counted, 0, sizeof(counted));
  iree_hal_allocator_query_statistics(allocator, &counted);
#if IREE_STATISTICS_ENABLE
  const uint64_t allocated = counted.host_bytes_allocated + counted.device_bytes_allocated;
  const uint64_t freed = counted.host_bytes_freed + counted.device_bytes_freed;
  stats.allocated_bytes = allocated > freed ? allocated - freed : 0;
  stats.peak_bytes = counted.host_bytes_peak + counted.device_bytes_peak;
#endif
  iree_hal_allocator_memory_heap_t heaps[HH_MAX_HEAPS];
  iree_host_size_t heap_count = 0;
  hh_iree_error_t* error = hh_error_from_status(
      iree_hal_allocator_query_memory_heaps(allocator, HH_MAX_HEAPS, heaps, &heap_count));
  if (error) return error;
  for (iree_host_size_t i = 0; i < heap_count; ++i) {
    if (heaps[i].max_allocation_size == ~(iree_device_size_t)0) continue;
    if (!iree_all_bits_set(heaps[i].type, IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL)) continue;
    if (heaps[i].max_allocation_size > stats.max_allocation_bytes) {
      stats.max_allocation_bytes = heaps[i].max_allocation_size;
    }
  }
  if (device->shares_host_memory) hh_host_memory(&stats.total_bytes, &stats.free_bytes);
  return hh_write_struct("memory stats", &stats, out_stats, sizeof(stats));
}

//===-- Buffers: types and shapes -----------------------------------------------------------===//

typedef struct hh_dtype_row_t {
  iree_hal_element_type_t element;
  uint32_t bits;
} hh_dtype_row_t;

// By hh_iree_dtype_t.
static const hh_dtype_row_t hh_dtypes[] = {
    [HH_IREE_DTYPE_NONE] = {IREE_HAL_ELEMENT_TYPE_NONE, 0},
    [HH_IREE_DTYPE_F32] = {IREE_HAL_ELEMENT_TYPE_FLOAT_32, 32},
    [HH_IREE_DTYPE_F16] = {IREE_HAL_ELEMENT_TYPE_FLOAT_16, 16},
    [HH_IREE_DTYPE_BF16] = {IREE_HAL_ELEMENT_TYPE_BFLOAT_16, 16},
    [HH_IREE_DTYPE_I8] = {IREE_HAL_ELEMENT_TYPE_INT_8, 8},
    [HH_IREE_DTYPE_U8] = {IREE_HAL_ELEMENT_TYPE_UINT_8, 8},
    [HH_IREE_DTYPE_I4] = {IREE_HAL_ELEMENT_TYPE_INT_4, 4},
    [HH_IREE_DTYPE_U4] = {IREE_HAL_ELEMENT_TYPE_UINT_4, 4},
    [HH_IREE_DTYPE_I32] = {IREE_HAL_ELEMENT_TYPE_INT_32, 32},
    [HH_IREE_DTYPE_U32] = {IREE_HAL_ELEMENT_TYPE_UINT_32, 32},
    [HH_IREE_DTYPE_I64] = {IREE_HAL_ELEMENT_TYPE_INT_64, 64},
    [HH_IREE_DTYPE_I16] = {IREE_HAL_ELEMENT_TYPE_INT_16, 16},
    [HH_IREE_DTYPE_U16] = {IREE_HAL_ELEMENT_TYPE_UINT_16, 16},
    [HH_IREE_DTYPE_BOOL] = {IREE_HAL_ELEMENT_TYPE_BOOL_8, 8},
};
#define HH_DTYPE_COUNT ((int32_t)(sizeof(hh_dtypes) / sizeof(hh_dtypes[0])))

uint32_t hh_iree_dtype_bits(int32_t dtype) {
  return dtype > 0 && dtype < HH_DTYPE_COUNT ? hh_dtypes[dtype].bits : 0;
}

static int32_t hh_dtype_from_element(iree_hal_element_type_t element) {
  for (int32_t i = 1; i < HH_DTYPE_COUNT; ++i) {
    if (hh_dtypes[i].element == element) return i;
  }
  return HH_IREE_DTYPE_NONE;
}

// Checks a shape, converts it, and computes its bytes.
static hh_iree_error_t* hh_shape(int32_t dtype, size_t rank, const int64_t* dims,
                                 iree_hal_dim_t* out_dims, size_t* out_bytes) {
  *out_bytes = 0;
  const uint32_t bits = hh_iree_dtype_bits(dtype);
  if (bits == 0) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%d is not a dtype", dtype);
  if (rank > HH_IREE_MAX_RANK) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "rank %zu; at most %d is possible", rank,
                    HH_IREE_MAX_RANK);
  }
  if (rank > 0) HH_NULL_CHECK(dims);
  uint64_t count = 1;
  bool overflow = false;
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "dimension %zu is %lld", i,
                      (long long)dims[i]);
    }
    out_dims[i] = (iree_hal_dim_t)dims[i];
    overflow = overflow || __builtin_mul_overflow(count, (uint64_t)dims[i], &count);
  }
  uint64_t total_bits = 0;
  overflow = overflow || __builtin_mul_overflow(count, (uint64_t)bits, &total_bits) ||
             __builtin_add_overflow(total_bits, 7, &total_bits);
  // Half the address space is beyond any buffer, and keeps every later addition safe.
  if (overflow || total_bits / 8 > SIZE_MAX / 2) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "the shape's size overflows");
  }
  *out_bytes = (size_t)(total_bits / 8);
  return NULL;
}

//===-- Buffers -----------------------------------------------------------------------------===//

struct hh_iree_buffer_t {
  hh_iree_device_t* device;
  iree_hal_buffer_view_t* view;
  int32_t origin;
  bool read_only;
};

void hh_iree_buffer_free(hh_iree_buffer_t* buffer) {
  if (!buffer) return;
  iree_hal_buffer_view_release(buffer->view);
  hh_iree_device_free(buffer->device);
  free(buffer);
}

// A buffer around `view`, which is retained.
static hh_iree_error_t* hh_buffer_wrap(hh_iree_device_t* device, iree_hal_buffer_view_t* view,
                                       int32_t origin, bool read_only,
                                       hh_iree_buffer_t** out_buffer) {
  hh_iree_buffer_t* buffer = malloc(sizeof(*buffer));
  if (!buffer) return &hh_out_of_memory;
  iree_hal_buffer_view_retain(view);
  *buffer = (hh_iree_buffer_t){hh_device_retain(device), view, origin, read_only};
  *out_buffer = buffer;
  return NULL;
}

static iree_hal_buffer_params_t hh_device_params(void) {
  return (iree_hal_buffer_params_t){
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
      .access = IREE_HAL_MEMORY_ACCESS_ALL,
      .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
  };
}

static void hh_import_released(void* user_data, iree_hal_buffer_t* buffer) {
  (void)buffer;
  hh_keeper_fire(user_data);
}

// Imports the caller's memory. On success the release callback is IREE's to call; on failure nothing
// has happened and it is still the caller's.
static iree_status_t hh_import(hh_iree_device_t* device, const hh_iree_upload_t* upload,
                               iree_hal_buffer_t** out_buffer) {
  *out_buffer = NULL;
  if (upload->length == 0 || !hh_is_aligned(upload->data, device->import_alignment)) {
    return iree_make_status(IREE_STATUS_OUT_OF_RANGE,
                            "an import needs content at a multiple of %zu bytes; it is %zu bytes "
                            "at %p",
                            device->import_alignment, upload->length, upload->data);
  }
  // The caller's callback is not in the keeper yet: if the import fails, a copy may still follow.
  hh_keeper_t* keeper = hh_keeper_create(NULL, NULL, NULL);
  if (!keeper) return iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  iree_hal_external_buffer_t external = {
      .type = IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
      .flags = IREE_HAL_EXTERNAL_BUFFER_FLAG_NONE,
      .size = upload->length,
      .handle.host_allocation.ptr = (void*)upload->data,
  };
  const iree_hal_buffer_params_t params = {
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
      .access = upload->writable ? IREE_HAL_MEMORY_ACCESS_ALL : IREE_HAL_MEMORY_ACCESS_READ,
      .type = IREE_HAL_MEMORY_TYPE_HOST_LOCAL | IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
  };
  const iree_hal_buffer_release_callback_t callback = {hh_import_released, keeper};
  iree_status_t status = iree_hal_allocator_import_buffer(iree_hal_device_allocator(device->hal),
                                                          params, &external, callback, out_buffer);
  const bool imported = iree_status_is_ok(status);
  if (imported) {
    keeper->release = upload->release;
    keeper->user_data = upload->release_user_data;
  }
  hh_keeper_settle(keeper, imported);
  return status;
}

// The upload with everything checked. Sets *imported when the callback has passed to IREE.
static hh_iree_error_t* hh_upload(hh_iree_device_t* device, const hh_iree_upload_t* upload,
                                  bool* imported, hh_iree_buffer_t** out_buffer) {
  iree_hal_dim_t dims[HH_IREE_MAX_RANK] = {0};
  size_t bytes = 0;
  hh_iree_error_t* error = hh_shape(upload->dtype, upload->rank, upload->dims, dims, &bytes);
  if (error) return error;
  if (bytes != upload->length) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%zu bytes given; the shape has %zu",
                    upload->length, bytes);
  }
  if (bytes > 0 && !upload->data) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%zu bytes at NULL", bytes);
  }
  if (upload->policy < HH_IREE_UPLOAD_AUTO || upload->policy > HH_IREE_UPLOAD_REQUIRE_IMPORT) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%d is not an upload policy", upload->policy);
  }
  const iree_hal_element_type_t element = hh_dtypes[upload->dtype].element;
  iree_hal_allocator_t* allocator = iree_hal_device_allocator(device->hal);
  iree_hal_buffer_view_t* view = NULL;
  iree_hal_buffer_t* memory = NULL;
  iree_status_t status = iree_ok_status();
  const bool try_import = upload->policy >= HH_IREE_UPLOAD_PREFER_IMPORT ||
                          (upload->policy == HH_IREE_UPLOAD_AUTO && device->shares_host_memory);
  if (try_import) {
    status = hh_import(device, upload, &memory);
    *imported = iree_status_is_ok(status);
    if (!*imported && upload->policy != HH_IREE_UPLOAD_REQUIRE_IMPORT) {
      hh_log(device->runtime, HH_IREE_LOG_DEBUG, "%zu bytes at %p are copied, not imported",
             upload->length, upload->data);
      iree_status_free(status);
      status = iree_ok_status();
    }
  }
  if (iree_status_is_ok(status) && *imported) {
    status = iree_hal_buffer_view_create(memory, upload->rank, dims, element,
                                         IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, hh_allocator(),
                                         &view);
    iree_hal_buffer_release(memory);
  } else if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_allocate_buffer_copy(
        device->hal, allocator, upload->rank, dims, element,
        IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, hh_device_params(),
        iree_make_const_byte_span(upload->data, bytes), &view);
  }
  error = hh_error_from_status(status);
  if (!error) {
    error = hh_buffer_wrap(device, view,
                           *imported ? HH_IREE_ORIGIN_IMPORTED : HH_IREE_ORIGIN_COPIED,
                           *imported && !upload->writable, out_buffer);
  }
  iree_hal_buffer_view_release(view);
  return error;
}

hh_iree_error_t* hh_iree_buffer_upload(hh_iree_device_t* device, const hh_iree_upload_t* upload,
                                       hh_iree_buffer_t** out_buffer) {
  hh_iree_upload_t given;
  hh_iree_error_t* error = hh_read_struct("upload", upload, &given, sizeof(given));
  if (error) {
    if (out_buffer) *out_buffer = NULL;
    return error;
  }
  bool imported = false;
  if (!out_buffer || !device) {
    error = hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: %s is NULL", __func__,
                     device ? "out_buffer" : "device");
    if (out_buffer) *out_buffer = NULL;
  } else {
    *out_buffer = NULL;
    error = hh_upload(device, &given, &imported, out_buffer);
  }
  if (!imported) hh_release_now(given.release, given.release_user_data);
  return error;
}

// Fills a range with zero bytes, on the host where it can see the memory, else on a queue.
static iree_status_t hh_zero(hh_iree_device_t* device, iree_hal_buffer_t* memory,
                             iree_device_size_t length) {
  if (length == 0) return iree_ok_status();
  if (iree_all_bits_set(iree_hal_buffer_memory_type(memory), IREE_HAL_MEMORY_TYPE_HOST_VISIBLE) &&
      iree_any_bit_set(iree_hal_buffer_allowed_usage(memory),
                       IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED)) {
    return iree_hal_buffer_map_zero(memory, 0, length);
  }
  iree_hal_semaphore_t* semaphore = NULL;
  iree_status_t status =
      iree_hal_semaphore_create(device->hal, IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &semaphore);
  if (iree_status_is_ok(status)) {
    uint64_t value = 1;
    const uint32_t pattern = 0;
    const iree_hal_semaphore_list_t signal = {1, &semaphore, &value};
    // A fill wants a multiple of its pattern's size.
    const iree_host_size_t width = length % sizeof(pattern) == 0 ? sizeof(pattern) : 1;
    status = iree_hal_device_queue_fill(device->hal, IREE_HAL_QUEUE_AFFINITY_ANY,
                                        iree_hal_semaphore_list_empty(), signal, memory, 0, length,
                                        &pattern, width, IREE_HAL_FILL_FLAG_NONE);
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_semaphore_wait(semaphore, 1, iree_infinite_timeout(),
                                     IREE_ASYNC_WAIT_FLAG_NONE);
  }
  iree_hal_semaphore_release(semaphore);
  return status;
}

hh_iree_error_t* hh_iree_buffer_allocate(hh_iree_device_t* device, int32_t dtype, size_t rank,
                                         const int64_t* dims, hh_iree_buffer_t** out_buffer) {
  HH_NULL_CHECK(out_buffer);
  *out_buffer = NULL;
  HH_NULL_CHECK(device);
  iree_hal_dim_t shape[HH_IREE_MAX_RANK] = {0};
  size_t bytes = 0;
  hh_iree_error_t* error = hh_shape(dtype, rank, dims, shape, &bytes);
  if (error) return error;
  iree_hal_buffer_t* memory = NULL;
  iree_hal_buffer_view_t* view = NULL;
  iree_status_t status = iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(device->hal),
                                                            hh_device_params(), bytes, &memory);
  if (iree_status_is_ok(status)) status = hh_zero(device, memory, bytes);
  if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_create(memory, rank, shape, hh_dtypes[dtype].element,
                                         IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, hh_allocator(),
                                         &view);
  }
  iree_hal_buffer_release(memory);
  error = hh_error_from_status(status);
  if (!error) error = hh_buffer_wrap(device, view, HH_IREE_ORIGIN_ALLOCATED, false, out_buffer);
  iree_hal_buffer_view_release(view);
  return error;
}

hh_iree_error_t* hh_iree_buffer_alias(hh_iree_buffer_t* buffer, int32_t dtype, size_t rank,
                                      const int64_t* dims, hh_iree_buffer_t** out_buffer) {
  HH_NULL_CHECK(out_buffer);
  *out_buffer = NULL;
  HH_NULL_CHECK(buffer);
  iree_hal_dim_t shape[HH_IREE_MAX_RANK] = {0};
  size_t bytes = 0;
  hh_iree_error_t* error = hh_shape(dtype, rank, dims, shape, &bytes);
  if (error) return error;
  if (bytes != hh_iree_buffer_byte_length(buffer)) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "the other view has %zu bytes, the buffer %llu",
                    bytes, (unsigned long long)hh_iree_buffer_byte_length(buffer));
  }
  iree_hal_buffer_view_t* view = NULL;
  error = hh_error_from_status(iree_hal_buffer_view_create(
      iree_hal_buffer_view_buffer(buffer->view), rank, shape, hh_dtypes[dtype].element,
      IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, hh_allocator(), &view));
  if (!error) {
    error = hh_buffer_wrap(buffer->device, view, buffer->origin, buffer->read_only, out_buffer);
  }
  iree_hal_buffer_view_release(view);
  return error;
}

int32_t hh_iree_buffer_dtype(const hh_iree_buffer_t* buffer) {
  return hh_dtype_from_element(iree_hal_buffer_view_element_type(buffer->view));
}

size_t hh_iree_buffer_rank(const hh_iree_buffer_t* buffer) {
  return iree_hal_buffer_view_shape_rank(buffer->view);
}

int64_t hh_iree_buffer_dim(const hh_iree_buffer_t* buffer, size_t index) {
  if (index >= hh_iree_buffer_rank(buffer)) return -1;
  return (int64_t)iree_hal_buffer_view_shape_dim(buffer->view, index);
}

uint64_t hh_iree_buffer_byte_length(const hh_iree_buffer_t* buffer) {
  return iree_hal_buffer_view_byte_length(buffer->view);
}

int32_t hh_iree_buffer_origin(const hh_iree_buffer_t* buffer) { return buffer->origin; }

const void* hh_iree_buffer_host_address(hh_iree_buffer_t* buffer) {
  iree_hal_buffer_t* memory = iree_hal_buffer_view_buffer(buffer->view);
  if (!buffer->device->shares_host_memory) return NULL;
  iree_hal_buffer_mapping_t mapping;
  iree_status_t status =
      iree_hal_buffer_map_range(memory, IREE_HAL_MAPPING_MODE_SCOPED, IREE_HAL_MEMORY_ACCESS_READ,
                                0, IREE_HAL_WHOLE_BUFFER, &mapping);
  if (!iree_status_is_ok(status)) {
    iree_status_free(status);
    return NULL;
  }
  const void* address = mapping.contents.data;
  iree_status_free(iree_hal_buffer_unmap_range(&mapping));
  return address;
}

static hh_iree_error_t* hh_check_range(const hh_iree_buffer_t* buffer, uint64_t offset,
                                       size_t length, const void* host) {
  const uint64_t total = hh_iree_buffer_byte_length(buffer);
  if (offset > total || length > total - offset) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "%zu bytes at %llu of a buffer of %llu", length,
                    (unsigned long long)offset, (unsigned long long)total);
  }
  if (length > 0 && !host) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%zu bytes at NULL", length);
  }
  return NULL;
}

static hh_iree_error_t* hh_check_writable(const hh_iree_buffer_t* buffer) {
  if (!buffer->read_only) return NULL;
  return hh_error(HH_IREE_CODE_PERMISSION_DENIED,
                  "the buffer is imported memory that was not declared writable");
}

hh_iree_error_t* hh_iree_buffer_read(hh_iree_buffer_t* buffer, uint64_t offset, void* target,
                                     size_t length) {
  HH_NULL_CHECK(buffer);
  hh_iree_error_t* error = hh_check_range(buffer, offset, length, target);
  if (error || length == 0) return error;
  return hh_error_from_status(iree_hal_device_transfer_d2h(
      buffer->device->hal, iree_hal_buffer_view_buffer(buffer->view), offset, target, length,
      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
}

hh_iree_error_t* hh_iree_buffer_write(hh_iree_buffer_t* buffer, uint64_t offset, const void* source,
                                      size_t length) {
  HH_NULL_CHECK(buffer);
  hh_iree_error_t* error = hh_check_writable(buffer);
  if (!error) error = hh_check_range(buffer, offset, length, source);
  if (error || length == 0) return error;
  return hh_error_from_status(iree_hal_device_transfer_h2d(
      buffer->device->hal, source, iree_hal_buffer_view_buffer(buffer->view), offset, length,
      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
}

hh_iree_error_t* hh_iree_buffer_zero(hh_iree_buffer_t* buffer) {
  HH_NULL_CHECK(buffer);
  hh_iree_error_t* error = hh_check_writable(buffer);
  if (error) return error;
  return hh_error_from_status(hh_zero(buffer->device, iree_hal_buffer_view_buffer(buffer->view),
                                      hh_iree_buffer_byte_length(buffer)));
}

//===-- Programs ----------------------------------------------------------------------------===//

struct hh_iree_program_t {
  atomic_size_t references;
  hh_iree_device_t* device;
  iree_vm_context_t* context;
};

static hh_iree_program_t* hh_program_retain(hh_iree_program_t* program) {
  atomic_fetch_add_explicit(&program->references, 1, memory_order_relaxed);
  return program;
}

void hh_iree_program_free(hh_iree_program_t* program) {
  if (!program) return;
  if (atomic_fetch_sub_explicit(&program->references, 1, memory_order_acq_rel) != 1) return;
  iree_vm_context_release(program->context);
  hh_iree_device_free(program->device);
  free(program);
}

// hal.buffer_view.trace ends in the log, never on stderr.
static iree_status_t hh_trace(void* user_data, iree_string_view_t key, iree_host_size_t count,
                              iree_hal_buffer_view_t** views, iree_allocator_t allocator) {
  const hh_iree_runtime_t* runtime = user_data;
  if (!runtime->log) return iree_ok_status();
  iree_status_t status = iree_ok_status();
  for (iree_host_size_t i = 0; iree_status_is_ok(status) && i < count; ++i) {
    iree_string_builder_t builder;
    iree_string_builder_initialize(allocator, &builder);
    status = iree_hal_buffer_view_append_to_builder(views[i], 32, &builder);
    if (iree_status_is_ok(status)) {
      const iree_string_view_t text = iree_string_builder_view(&builder);
      hh_log(runtime, HH_IREE_LOG_DEBUG, "%.*s [%zu]: %.*s", (int)key.size, key.data, (size_t)i,
             (int)(text.size > 400 ? 400 : text.size), text.data);
    }
    iree_string_builder_deinitialize(&builder);
  }
  return status;
}

static iree_status_t hh_register(hh_iree_program_t* program, iree_vm_module_t* module) {
  return iree_vm_context_register_modules(program->context, 1, &module);
}

static iree_status_t hh_add_hal_module(hh_iree_program_t* program) {
  hh_iree_runtime_t* runtime = program->device->runtime;
  iree_vm_module_t* module = NULL;
  const iree_hal_module_debug_sink_t sink = {.buffer_view_trace = {hh_trace, runtime}};
  iree_status_t status = iree_hal_module_create(
      runtime->instance, iree_hal_module_device_policy_default(), program->device->group,
      IREE_HAL_MODULE_FLAG_NONE, sink, hh_allocator(), &module);
  if (iree_status_is_ok(status)) status = hh_register(program, module);
  iree_vm_module_release(module);
  return status;
}

static void hh_parameter_released(void* user_data, iree_io_file_handle_primitive_t primitive) {
  (void)primitive;
  hh_keeper_fire(user_data);
}

// Adds one entry to `index`. The parameter's callback is consumed, whatever happens.
static iree_status_t hh_add_parameter(const hh_iree_program_t* program,
                                      const hh_iree_parameter_t* parameter,
                                      iree_io_parameter_index_t* index) {
  // IREE imports unaligned memory here with a flag that makes programs crash: copy it instead.
  const void* data = parameter->data;
  hh_keeper_t* keeper =
      hh_keep_aligned(&data, parameter->length, program->device->import_alignment,
                      parameter->release, parameter->release_user_data);
  if (!keeper) return iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  iree_io_file_handle_t* handle = NULL;
  const iree_io_file_handle_release_callback_t callback = {hh_parameter_released, keeper};
  iree_status_t status = iree_io_file_handle_wrap_host_allocation(
      IREE_IO_FILE_ACCESS_READ, iree_make_byte_span((void*)data, parameter->length), callback,
      hh_allocator(), &handle);
  hh_keeper_settle(keeper, iree_status_is_ok(status));
  if (!iree_status_is_ok(status)) return status;
  const iree_io_parameter_index_entry_t entry = {
      .key = iree_make_cstring_view(parameter->key),
      .length = parameter->length,
      .type = IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_FILE,
      .storage.file = {.handle = handle, .offset = 0},
  };
  status = iree_io_parameter_index_add(index, &entry);
  iree_io_file_handle_release(handle);
  return status;
}

typedef struct hh_scopes_t {
  size_t count;
  const char* names[HH_MAX_SCOPES];
  iree_io_parameter_index_t* indices[HH_MAX_SCOPES];
  iree_io_parameter_provider_t* providers[HH_MAX_SCOPES];
} hh_scopes_t;

static iree_status_t hh_scope_index(hh_scopes_t* scopes, const char* name,
                                    iree_io_parameter_index_t** out_index) {
  for (size_t i = 0; i < scopes->count; ++i) {
    if (strcmp(scopes->names[i], name) == 0) {
      *out_index = scopes->indices[i];
      return iree_ok_status();
    }
  }
  if (scopes->count == HH_MAX_SCOPES) {
    return iree_make_status(IREE_STATUS_OUT_OF_RANGE, "more than %d parameter scopes",
                            HH_MAX_SCOPES);
  }
  IREE_RETURN_IF_ERROR(
      iree_io_parameter_index_create(hh_allocator(), &scopes->indices[scopes->count]));
  scopes->names[scopes->count] = name;
  *out_index = scopes->indices[scopes->count++];
  return iree_ok_status();
}

// Consumes the callback of every parameter, whatever happens. The module is registered even without
// parameters, so that a program which wants some gets an error that says so.
static iree_status_t hh_add_parameter_module(hh_iree_program_t* program,
                                             const hh_iree_parameter_t* parameters, size_t count) {
  hh_scopes_t scopes = {0};
  iree_status_t status = iree_ok_status();
  for (size_t i = 0; i < count; ++i) {
    iree_io_parameter_index_t* index = NULL;
    if (iree_status_is_ok(status)) status = hh_scope_index(&scopes, parameters[i].scope, &index);
    if (iree_status_is_ok(status)) {
      status = hh_add_parameter(program, &parameters[i], index);
    } else {
      hh_release_now(parameters[i].release, parameters[i].release_user_data);
    }
  }
  for (size_t i = 0; iree_status_is_ok(status) && i < scopes.count; ++i) {
    status = iree_io_parameter_index_provider_create(
        iree_make_cstring_view(scopes.names[i]), scopes.indices[i],
        IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS, hh_allocator(),
        &scopes.providers[i]);
  }
  iree_vm_module_t* module = NULL;
  if (iree_status_is_ok(status)) {
    status = iree_io_parameters_module_create(program->device->runtime->instance, scopes.count,
                                              scopes.providers, hh_allocator(), &module);
  }
  if (iree_status_is_ok(status)) status = hh_register(program, module);
  iree_vm_module_release(module);
  for (size_t i = 0; i < scopes.count; ++i) {
    iree_io_parameter_provider_release(scopes.providers[i]);
    iree_io_parameter_index_release(scopes.indices[i]);
  }
  return status;
}

// An IREE allocator that can only free: it fires the keeper of a module's memory.
static iree_status_t hh_module_memory_ctl(void* self, iree_allocator_command_t command,
                                          const void* params, void** inout_pointer) {
  (void)params;
  if (command != IREE_ALLOCATOR_COMMAND_FREE) {
    return iree_make_status(IREE_STATUS_FAILED_PRECONDITION, "a module's memory cannot grow");
  }
  *inout_pointer = NULL;
  hh_keeper_fire(self);
  return iree_ok_status();
}

// Consumes the module's callback, whatever happens.
static iree_status_t hh_add_bytecode_module(hh_iree_program_t* program,
                                            const hh_iree_module_t* given) {
  const void* data = given->data;
  hh_keeper_t* keeper = hh_keep_aligned(&data, given->length, HH_LOCAL_ALIGNMENT, given->release,
                                        given->release_user_data);
  if (!keeper) return iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  const iree_allocator_t memory = {.self = keeper, .ctl = hh_module_memory_ctl};
  iree_vm_module_t* module = NULL;
  iree_status_t status = iree_vm_bytecode_module_create(
      program->device->runtime->instance, IREE_VM_BYTECODE_MODULE_FLAG_NONE,
      iree_make_const_byte_span(data, given->length), memory, hh_allocator(), &module);
  hh_keeper_settle(keeper, iree_status_is_ok(status));
  if (iree_status_is_ok(status)) status = hh_register(program, module);
  iree_vm_module_release(module);
  return status;
}

// Copies an array of versioned structs of the caller's size into one of ours.
static hh_iree_error_t* hh_read_array(const char* what, const void* source, size_t count,
                                      size_t size, void** out_array) {
  *out_array = NULL;
  if (count == 0) return NULL;
  if (!source) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: the array is NULL", what);
  size_t stride = 0;
  memcpy(&stride, source, sizeof(stride));
  char* array = calloc(count, size);
  if (!array) return &hh_out_of_memory;
  hh_iree_error_t* error = NULL;
  for (size_t i = 0; !error && i < count; ++i) {
    const char* element = (const char*)source + i * stride;
    error = hh_read_struct(what, element, array + i * size, size);
    size_t own = 0;
    if (!error) memcpy(&own, element, sizeof(own));
    if (!error && own != stride) {
      error = hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: elements differ in struct_size", what);
    }
  }
  if (error) {
    free(array);
    return error;
  }
  *out_array = array;
  return NULL;
}

static hh_iree_error_t* hh_check_program(const hh_iree_module_t* modules, size_t module_count,
                                         const hh_iree_parameter_t* parameters,
                                         size_t parameter_count) {
  if (module_count == 0) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "no module was given");
  for (size_t i = 0; i < module_count; ++i) {
    if (!modules[i].data || modules[i].length == 0) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "module %zu is empty", i);
    }
  }
  for (size_t i = 0; i < parameter_count; ++i) {
    if (!parameters[i].scope || !parameters[i].key || (parameters[i].length && !parameters[i].data)) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "parameter %zu lacks its scope, key or data",
                      i);
    }
  }
  return NULL;
}

hh_iree_error_t* hh_iree_program_create(hh_iree_device_t* device,
                                        const hh_iree_program_options_t* options,
                                        hh_iree_program_t** out_program) {
  HH_NULL_CHECK(out_program);
  *out_program = NULL;
  hh_iree_program_options_t given;
  hh_iree_error_t* error = hh_read_struct("program options", options, &given, sizeof(given));
  if (error) return error;
  hh_iree_module_t* modules = NULL;
  hh_iree_parameter_t* parameters = NULL;
  error = hh_read_array("modules", given.modules, given.module_count, sizeof(*modules),
                        (void**)&modules);
  if (error) return error;
  error = hh_read_array("parameters", given.parameters, given.parameter_count, sizeof(*parameters),
                        (void**)&parameters);
  const size_t parameter_count = error ? 0 : given.parameter_count;
  // From here on callbacks are known, and each is consumed exactly once. `used` counts modules.
  size_t used = 0;
  bool parameters_used = false;
  if (!error && !device) {
    error = hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: device is NULL", __func__);
  }
  if (!error) error = hh_check_program(modules, given.module_count, parameters, parameter_count);
  hh_iree_program_t* program = NULL;
  if (!error) {
    program = calloc(1, sizeof(*program));
    if (!program) error = &hh_out_of_memory;
  }
  if (!error) {
    atomic_init(&program->references, 1);
    program->device = hh_device_retain(device);
    iree_status_t status = iree_vm_context_create(device->runtime->instance,
                                                  IREE_VM_CONTEXT_FLAG_NONE, hh_allocator(),
                                                  &program->context);
    if (iree_status_is_ok(status)) status = hh_add_hal_module(program);
    if (iree_status_is_ok(status)) {
      parameters_used = true;
      status = hh_add_parameter_module(program, parameters, parameter_count);
    }
    while (iree_status_is_ok(status) && used < given.module_count) {
      status = hh_add_bytecode_module(program, &modules[used++]);
    }
    error = hh_error_from_status(status);
  }
  for (size_t i = used; modules && i < given.module_count; ++i) {
    hh_release_now(modules[i].release, modules[i].release_user_data);
  }
  for (size_t i = 0; !parameters_used && i < parameter_count; ++i) {
    hh_release_now(parameters[i].release, parameters[i].release_user_data);
  }
  free(modules);
  free(parameters);
  if (error) {
    hh_iree_program_free(program);
    return error;
  }
  *out_program = program;
  return NULL;
}

static hh_iree_error_t* hh_resolve(const hh_iree_program_t* program, const char* name,
                                   iree_vm_function_t* out_function) {
  iree_status_t status = iree_vm_context_resolve_function(
      program->context, iree_make_cstring_view(name), out_function);
  if (!iree_status_is_ok(status)) {
    status = iree_status_annotate_f(status, "looking up function '%s'", name);
  }
  return hh_error_from_status(status);
}

hh_iree_error_t* hh_iree_program_has_function(const hh_iree_program_t* program, const char* name) {
  HH_NULL_CHECK(program);
  HH_NULL_CHECK(name);
  iree_vm_function_t function;
  return hh_resolve(program, name, &function);
}

//===-- Calls -------------------------------------------------------------------------------===//

struct hh_iree_call_t {
  hh_iree_program_t* program;
  iree_vm_function_t function;
  size_t argument_count;
  size_t result_count;
  uint8_t* kinds;  // of the arguments, then of the results
  bool* is_set;    // by argument
  iree_vm_list_t* inputs;
  iree_vm_list_t* outputs;
};

void hh_iree_call_free(hh_iree_call_t* call) {
  if (!call) return;
  iree_vm_list_release(call->inputs);
  iree_vm_list_release(call->outputs);
  free(call->kinds);
  free(call->is_set);
  hh_iree_program_free(call->program);
  free(call);
}

static hh_iree_error_t* hh_parse_kinds(iree_string_view_t text, uint8_t* out_kinds) {
  for (iree_host_size_t i = 0; i < text.size; ++i) {
    switch (text.data[i]) {
      case IREE_VM_CCONV_TYPE_REF:
        out_kinds[i] = HH_IREE_KIND_BUFFER;
        break;
      case IREE_VM_CCONV_TYPE_I32:
        out_kinds[i] = HH_IREE_KIND_I32;
        break;
      case IREE_VM_CCONV_TYPE_I64:
        out_kinds[i] = HH_IREE_KIND_I64;
        break;
      case IREE_VM_CCONV_TYPE_F32:
        out_kinds[i] = HH_IREE_KIND_F32;
        break;
      case IREE_VM_CCONV_TYPE_F64:
        out_kinds[i] = HH_IREE_KIND_F64;
        break;
      default:
        return hh_error(HH_IREE_CODE_UNIMPLEMENTED, "the function's type '%.*s' has '%c' in it",
                        (int)text.size, text.data, text.data[i]);
    }
  }
  return NULL;
}

static hh_iree_error_t* hh_call_prepare(hh_iree_call_t* call, const char* name) {
  hh_iree_error_t* error = hh_resolve(call->program, name, &call->function);
  if (error) return error;
  iree_string_view_t arguments, results;
  const iree_vm_function_signature_t signature = iree_vm_function_signature(&call->function);
  error = hh_error_from_status(
      iree_vm_function_call_get_cconv_fragments(&signature, &arguments, &results));
  if (error) return error;
  call->argument_count = arguments.size;
  call->result_count = results.size;
  call->kinds = calloc(arguments.size + results.size + 1, sizeof(*call->kinds));
  call->is_set = calloc(arguments.size + 1, sizeof(*call->is_set));
  if (!call->kinds || !call->is_set) return &hh_out_of_memory;
  error = hh_parse_kinds(arguments, call->kinds);
  if (!error) error = hh_parse_kinds(results, call->kinds + arguments.size);
  if (error) return error;
  const iree_vm_type_def_t any = iree_vm_make_undefined_type_def();
  iree_status_t status =
      iree_vm_list_create(any, call->argument_count, hh_allocator(), &call->inputs);
  if (iree_status_is_ok(status)) status = iree_vm_list_resize(call->inputs, call->argument_count);
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_create(any, call->result_count, hh_allocator(), &call->outputs);
  }
  return hh_error_from_status(status);
}

hh_iree_error_t* hh_iree_call_create(hh_iree_program_t* program, const char* name,
                                     hh_iree_call_t** out_call) {
  HH_NULL_CHECK(out_call);
  *out_call = NULL;
  HH_NULL_CHECK(program);
  HH_NULL_CHECK(name);
  hh_iree_call_t* call = calloc(1, sizeof(*call));
  if (!call) return &hh_out_of_memory;
  call->program = hh_program_retain(program);
  hh_iree_error_t* error = hh_call_prepare(call, name);
  if (error) {
    hh_iree_call_free(call);
    return error;
  }
  *out_call = call;
  return NULL;
}

size_t hh_iree_call_argument_count(const hh_iree_call_t* call) { return call->argument_count; }

int32_t hh_iree_call_argument_kind(const hh_iree_call_t* call, size_t index) {
  return index < call->argument_count ? call->kinds[index] : HH_IREE_KIND_NONE;
}

size_t hh_iree_call_result_count(const hh_iree_call_t* call) { return call->result_count; }

int32_t hh_iree_call_result_kind(const hh_iree_call_t* call, size_t index) {
  return index < call->result_count ? call->kinds[call->argument_count + index] : HH_IREE_KIND_NONE;
}

static const char* hh_kind_name(int32_t kind) {
  static const char* names[] = {"nothing", "a buffer", "an i32", "an i64", "an f32", "an f64"};
  return names[kind];
}

static hh_iree_error_t* hh_check_argument(const hh_iree_call_t* call, size_t index, int32_t kind) {
  HH_NULL_CHECK(call);
  if (index >= call->argument_count) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "argument %zu of a function with %zu", index,
                    call->argument_count);
  }
  if (call->kinds[index] != kind) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "argument %zu is %s, not %s", index,
                    hh_kind_name(call->kinds[index]), hh_kind_name(kind));
  }
  return NULL;
}

hh_iree_error_t* hh_iree_call_set_buffer(hh_iree_call_t* call, size_t index,
                                         hh_iree_buffer_t* buffer) {
  hh_iree_error_t* error = hh_check_argument(call, index, HH_IREE_KIND_BUFFER);
  if (error) return error;
  HH_NULL_CHECK(buffer);
  if (buffer->device->hal != call->program->device->hal) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT,
                    "argument %zu is a buffer of another device (%s:%zu)", index,
                    buffer->device->driver, buffer->device->ordinal);
  }
  iree_vm_ref_t reference = iree_hal_buffer_view_retain_ref(buffer->view);
  iree_status_t status = iree_vm_list_set_ref_move(call->inputs, index, &reference);
  iree_vm_ref_release(&reference);
  if (iree_status_is_ok(status)) call->is_set[index] = true;
  return hh_error_from_status(status);
}

static hh_iree_error_t* hh_set_value(hh_iree_call_t* call, size_t index, int32_t kind,
                                     iree_vm_value_t value) {
  hh_iree_error_t* error = hh_check_argument(call, index, kind);
  if (error) return error;
  iree_status_t status = iree_vm_list_set_value(call->inputs, index, &value);
  if (iree_status_is_ok(status)) call->is_set[index] = true;
  return hh_error_from_status(status);
}

hh_iree_error_t* hh_iree_call_set_i32(hh_iree_call_t* call, size_t index, int32_t value) {
  return hh_set_value(call, index, HH_IREE_KIND_I32, iree_vm_value_make_i32(value));
}

hh_iree_error_t* hh_iree_call_set_i64(hh_iree_call_t* call, size_t index, int64_t value) {
  return hh_set_value(call, index, HH_IREE_KIND_I64, iree_vm_value_make_i64(value));
}

hh_iree_error_t* hh_iree_call_set_f32(hh_iree_call_t* call, size_t index, float value) {
  return hh_set_value(call, index, HH_IREE_KIND_F32, iree_vm_value_make_f32(value));
}

void hh_iree_call_clear(hh_iree_call_t* call) {
  if (!call) return;
  iree_vm_list_clear(call->outputs);
  iree_vm_list_clear(call->inputs);
  // Cannot fail: the capacity is there since the call was created.
  iree_status_free(iree_vm_list_resize(call->inputs, call->argument_count));
  memset(call->is_set, 0, call->argument_count * sizeof(*call->is_set));
}

void hh_iree_call_drop_results(hh_iree_call_t* call) {
  if (call) iree_vm_list_clear(call->outputs);
}

hh_iree_error_t* hh_iree_call_invoke(hh_iree_call_t* call) {
  HH_NULL_CHECK(call);
  iree_vm_list_clear(call->outputs);
  for (size_t i = 0; i < call->argument_count; ++i) {
    if (!call->is_set[i]) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "argument %zu of %zu (%s) is not set", i,
                      call->argument_count, hh_kind_name(call->kinds[i]));
    }
  }
  iree_status_t status =
      iree_vm_invoke(call->program->context, call->function, IREE_VM_INVOCATION_FLAG_NONE,
                     /*policy=*/NULL, call->inputs, call->outputs, hh_allocator());
  if (!iree_status_is_ok(status)) iree_vm_list_clear(call->outputs);
  return hh_error_from_status(status);
}

static hh_iree_error_t* hh_check_result(const hh_iree_call_t* call, size_t index, int32_t kind) {
  if (index >= call->result_count) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "result %zu of a function with %zu", index,
                    call->result_count);
  }
  if (hh_iree_call_result_kind(call, index) != kind) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "result %zu is %s, not %s", index,
                    hh_kind_name(hh_iree_call_result_kind(call, index)), hh_kind_name(kind));
  }
  if (index >= iree_vm_list_size(call->outputs)) {
    return hh_error(HH_IREE_CODE_FAILED_PRECONDITION, "there are no results: nothing was invoked");
  }
  return NULL;
}

hh_iree_error_t* hh_iree_call_result_buffer(hh_iree_call_t* call, size_t index,
                                            hh_iree_buffer_t** out_buffer) {
  HH_NULL_CHECK(out_buffer);
  *out_buffer = NULL;
  HH_NULL_CHECK(call);
  hh_iree_error_t* error = hh_check_result(call, index, HH_IREE_KIND_BUFFER);
  if (error) return error;
  iree_hal_buffer_view_t* view =
      iree_vm_list_get_buffer_view_assign(call->outputs, index);
  if (!view) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "result %zu is not a buffer view", index);
  }
  return hh_buffer_wrap(call->program->device, view, HH_IREE_ORIGIN_RESULT, false, out_buffer);
}

static hh_iree_error_t* hh_result_value(hh_iree_call_t* call, size_t index, int32_t kind,
                                        iree_vm_value_t* out_value) {
  HH_NULL_CHECK(call);
  hh_iree_error_t* error = hh_check_result(call, index, kind);
  if (error) return error;
  return hh_error_from_status(iree_vm_list_get_value(call->outputs, index, out_value));
}

hh_iree_error_t* hh_iree_call_result_i32(hh_iree_call_t* call, size_t index, int32_t* out_value) {
  HH_NULL_CHECK(out_value);
  iree_vm_value_t value = {0};
  hh_iree_error_t* error = hh_result_value(call, index, HH_IREE_KIND_I32, &value);
  *out_value = error ? 0 : value.i32;
  return error;
}

hh_iree_error_t* hh_iree_call_result_i64(hh_iree_call_t* call, size_t index, int64_t* out_value) {
  HH_NULL_CHECK(out_value);
  iree_vm_value_t value = {0};
  hh_iree_error_t* error = hh_result_value(call, index, HH_IREE_KIND_I64, &value);
  *out_value = error ? 0 : value.i64;
  return error;
}

hh_iree_error_t* hh_iree_call_result_f32(hh_iree_call_t* call, size_t index, float* out_value) {
  HH_NULL_CHECK(out_value);
  iree_vm_value_t value = {0};
  hh_iree_error_t* error = hh_result_value(call, index, HH_IREE_KIND_F32, &value);
  *out_value = error ? 0 : value.f32;
  return error;
}
