// Opening a device, and what it says of itself.

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "iree/async/frontier_tracker.h"
#include "iree/async/util/proactor_pool.h"

#include "internal.h"

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

hh_iree_runtime_t* hh_device_runtime(const hh_iree_device_t* device) { return device->runtime; }

iree_hal_device_t* hh_device_hal(const hh_iree_device_t* device) { return device->hal; }

iree_hal_device_group_t* hh_device_group(const hh_iree_device_t* device) { return device->group; }

const char* hh_device_driver(const hh_iree_device_t* device) { return device->driver; }

size_t hh_device_ordinal(const hh_iree_device_t* device) { return device->ordinal; }

hh_iree_device_t* hh_device_retain(hh_iree_device_t* device) {
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
    status = hh_device_list_open(list, index, runtime, &create_params, out_device);
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
    if (!device) error = hh_error_out_of_memory();
  }
  if (!error) {
    atomic_init(&device->references, 1);
    device->runtime = hh_runtime_retain(runtime);
    device->ordinal = index;
    device->shares_host_memory =
        hh_is_local_driver(given.driver) || strcmp(given.driver, "metal") == 0;
    device->import_alignment =
        hh_is_local_driver(given.driver) ? HH_LOCAL_ALIGNMENT : hh_page_size();
    iree_status_t status = hh_create_hal_device(runtime, &given, list, index, &device->hal);
    if (iree_status_is_ok(status)) status = hh_create_group(device);
    error = hh_error_from_status(status);
  }
  // The list is about to go: its strings move over.
  if (!error) hh_device_list_take(list, index, &device->driver, &device->id, &device->name);
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
