// What a driver enumerates, and how a device is chosen from it.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

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

bool hh_is_local_driver(const char* name) {
  return strcmp(name, "local-task") == 0 || strcmp(name, "local-sync") == 0;
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
        hh_runtime_registry(runtime), iree_make_cstring_view(list->driver_name), hh_allocator(),
        &list->driver);
    if (iree_status_is_ok(status)) {
      status = iree_hal_driver_query_available_devices(list->driver, hh_allocator(), &count, &infos);
    }
    if (!iree_status_is_ok(status)) return hh_error_from_status(status);
  }
  hh_iree_error_t* error = NULL;
  list->entries = calloc(count ? count : 1, sizeof(*list->entries));
  if (!list->entries) error = hh_error_out_of_memory();
  for (size_t i = 0; !error && i < count; ++i) {
    hh_device_entry_t* entry = &list->entries[i];
    const bool has_path = infos && infos[i].path.size > 0;
    entry->id = has_path ? hh_string(infos[i].path.data, infos[i].path.size)
                         : hh_string("default", strlen("default"));
    entry->name = infos ? hh_string(infos[i].name.data, infos[i].name.size)
                        : hh_string("host CPU", strlen("host CPU"));
    entry->native = infos ? infos[i].device_id : IREE_HAL_DEVICE_ID_DEFAULT;
    list->count = i + 1;
    if (!entry->id || !entry->name) error = hh_error_out_of_memory();
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
  hh_iree_error_t* error = hh_runtime_check_driver(runtime, driver);
  if (error) return error;
  hh_iree_device_list_t* list = calloc(1, sizeof(*list));
  if (!list) return hh_error_out_of_memory();
  list->driver_name = hh_string(driver, strlen(driver));
  error = list->driver_name ? hh_device_list_fill(runtime, list) : hh_error_out_of_memory();
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

hh_iree_error_t* hh_device_list_select(const hh_iree_device_list_t* list, const char* selector,
                                       size_t* out_index) {
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

iree_status_t hh_device_list_open(const hh_iree_device_list_t* list, size_t index,
                                  hh_iree_runtime_t* runtime,
                                  const iree_hal_device_create_params_t* params,
                                  iree_hal_device_t** out_device) {
  iree_status_t status = iree_ok_status();
  iree_hal_driver_t* driver = list->driver;
  iree_hal_driver_retain(driver);
  if (!driver) {
    status = iree_hal_driver_registry_try_create(hh_runtime_registry(runtime),
                                                 iree_make_cstring_view(list->driver_name),
                                                 hh_allocator(), &driver);
  }
  if (iree_status_is_ok(status)) {
    status = iree_hal_driver_create_device_by_id(driver, list->entries[index].native, 0, NULL,
                                                 params, hh_allocator(), out_device);
  }
  iree_hal_driver_release(driver);
  return status;
}

void hh_device_list_take(hh_iree_device_list_t* list, size_t index, char** out_driver,
                         char** out_id, char** out_name) {
  *out_driver = list->driver_name;
  *out_id = list->entries[index].id;
  *out_name = list->entries[index].name;
  list->driver_name = NULL;
  list->entries[index].id = NULL;
  list->entries[index].name = NULL;
}
