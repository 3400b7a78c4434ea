// The named parameters of a program, as a module of IREE's that hands them out.

#include <string.h>

#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/io/parameters/module.h"

#include "internal.h"

#define HH_MAX_SCOPES 16

static void hh_parameter_released(void* user_data, iree_io_file_handle_primitive_t primitive) {
  (void)primitive;
  hh_keeper_fire(user_data);
}

// Adds one entry to `index`. The parameter's callback is consumed, whatever happens.
static iree_status_t hh_add_parameter(hh_iree_device_t* device,
                                      const hh_iree_parameter_t* parameter,
                                      iree_io_parameter_index_t* index) {
  // IREE imports unaligned memory here with a flag that makes programs crash: copy it instead.
  const void* data = parameter->data;
  hh_keeper_t* keeper =
      hh_keep_aligned(&data, parameter->length, hh_iree_device_import_alignment(device),
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

iree_status_t hh_parameter_module_create(hh_iree_device_t* device,
                                         const hh_iree_parameter_t* parameters, size_t count,
                                         iree_vm_module_t** out_module) {
  *out_module = NULL;
  hh_scopes_t scopes = {0};
  iree_status_t status = iree_ok_status();
  for (size_t i = 0; i < count; ++i) {
    iree_io_parameter_index_t* index = NULL;
    if (iree_status_is_ok(status)) status = hh_scope_index(&scopes, parameters[i].scope, &index);
    if (iree_status_is_ok(status)) {
      status = hh_add_parameter(device, &parameters[i], index);
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
  if (iree_status_is_ok(status)) {
    status = iree_io_parameters_module_create(hh_runtime_instance(hh_device_runtime(device)),
                                              scopes.count, scopes.providers, hh_allocator(),
                                              out_module);
  }
  for (size_t i = 0; i < scopes.count; ++i) {
    iree_io_parameter_provider_release(scopes.providers[i]);
    iree_io_parameter_index_release(scopes.indices[i]);
  }
  return status;
}
