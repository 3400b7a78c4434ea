// The runtime: the drivers that are linked in, the log, the VM instance.

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iree/hal/drivers/init.h"
#include "iree/modules/hal/types.h"

#include "internal.h"

#define HH_MAX_DRIVERS 16

struct hh_iree_runtime_t {
  atomic_size_t references;
  hh_iree_log_fn_t log;
  void* log_user_data;
  iree_hal_driver_registry_t* registry;
  iree_vm_instance_t* instance;
  size_t driver_count;
  char* drivers[HH_MAX_DRIVERS];
};

void hh_log(const hh_iree_runtime_t* runtime, int32_t level, const char* format, ...) {
  if (!runtime->log) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  runtime->log(runtime->log_user_data, level, text);
}

bool hh_runtime_logs(const hh_iree_runtime_t* runtime) { return runtime->log != NULL; }

iree_hal_driver_registry_t* hh_runtime_registry(hh_iree_runtime_t* runtime) {
  return runtime->registry;
}

iree_vm_instance_t* hh_runtime_instance(hh_iree_runtime_t* runtime) { return runtime->instance; }

hh_iree_runtime_t* hh_runtime_retain(hh_iree_runtime_t* runtime) {
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

static hh_iree_error_t* hh_runtime_name_drivers(hh_iree_runtime_t* runtime) {
  iree_host_size_t count = 0;
  iree_hal_driver_info_t* infos = NULL;
  hh_iree_error_t* error = hh_error_from_status(
      iree_hal_driver_registry_enumerate(runtime->registry, hh_allocator(), &count, &infos));
  if (error) return error;
  for (size_t i = 0; i < count && i < HH_MAX_DRIVERS; ++i) {
    char* name = hh_string(infos[i].driver_name.data, infos[i].driver_name.size);
    if (!name) {
      error = hh_error_out_of_memory();
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
    hh_iree_error_t* error = hh_read_struct("runtime options", options, &given, sizeof(given));
    if (error) return error;
  }
  hh_iree_runtime_t* runtime = calloc(1, sizeof(*runtime));
  if (!runtime) return hh_error_out_of_memory();
  atomic_init(&runtime->references, 1);
  runtime->log = given.log;
  runtime->log_user_data = given.log_user_data;
  iree_status_t status = iree_hal_driver_registry_allocate(hh_allocator(), &runtime->registry);
  if (iree_status_is_ok(status)) status = iree_hal_register_all_available_drivers(runtime->registry);
  // The first instance of a process writes the globals of all types: not twice at once.
  static pthread_mutex_t types = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&types);
  if (iree_status_is_ok(status)) {
    status = iree_vm_instance_create(IREE_VM_TYPE_CAPACITY_DEFAULT, hh_allocator(),
                                     &runtime->instance);
  }
  if (iree_status_is_ok(status)) status = iree_hal_module_register_all_types(runtime->instance);
  pthread_mutex_unlock(&types);
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

hh_iree_error_t* hh_runtime_check_driver(const hh_iree_runtime_t* runtime, const char* driver) {
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
