// Buffers with a content: the caller's memory itself, or a copy of it.

#include "internal.h"

static void hh_import_released(void* user_data, iree_hal_buffer_t* buffer) {
  (void)buffer;
  hh_keeper_fire(user_data);
}

// Imports the caller's memory. On success the release callback is IREE's to call; on failure nothing
// has happened and it is still the caller's.
static iree_status_t hh_import(hh_iree_device_t* device, const hh_iree_upload_t* upload,
                               iree_hal_buffer_t** out_buffer) {
  *out_buffer = NULL;
  const size_t alignment = hh_iree_device_import_alignment(device);
  if (upload->length == 0 || !hh_is_aligned(upload->data, alignment)) {
    return iree_make_status(IREE_STATUS_OUT_OF_RANGE,
                            "an import needs content at a multiple of %zu bytes; it is %zu bytes "
                            "at %p",
                            alignment, upload->length, upload->data);
  }
  // The caller's callback is not in the keeper yet: if the import fails, a copy may still follow.
  hh_keeper_t* keeper = hh_keeper_create();
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
  iree_status_t status =
      iree_hal_allocator_import_buffer(iree_hal_device_allocator(hh_device_hal(device)), params,
                                       &external, callback, out_buffer);
  const bool imported = iree_status_is_ok(status);
  if (imported) hh_keeper_tell(keeper, upload->release, upload->release_user_data);
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
  const iree_hal_element_type_t element = hh_dtype_element(upload->dtype);
  iree_hal_allocator_t* allocator = iree_hal_device_allocator(hh_device_hal(device));
  iree_hal_buffer_view_t* view = NULL;
  iree_hal_buffer_t* memory = NULL;
  iree_status_t status = iree_ok_status();
  const bool try_import =
      upload->policy >= HH_IREE_UPLOAD_PREFER_IMPORT ||
      (upload->policy == HH_IREE_UPLOAD_AUTO && hh_iree_device_shares_host_memory(device));
  if (try_import) {
    status = hh_import(device, upload, &memory);
    *imported = iree_status_is_ok(status);
    if (!*imported && upload->policy != HH_IREE_UPLOAD_REQUIRE_IMPORT) {
      hh_log(hh_device_runtime(device), HH_IREE_LOG_DEBUG,
             "%zu bytes at %p are copied, not imported", upload->length, upload->data);
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
        hh_device_hal(device), allocator, upload->rank, dims, element,
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
