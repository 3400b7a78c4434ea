// Buffers: a view of IREE's, the device that it lies on, and where its memory is from.

#include <stdlib.h>

#include "internal.h"

struct hh_iree_buffer_t {
  hh_iree_device_t* device;
  iree_hal_buffer_view_t* view;
  int32_t origin;
  bool read_only;
};

hh_iree_device_t* hh_buffer_device(const hh_iree_buffer_t* buffer) { return buffer->device; }

iree_hal_buffer_view_t* hh_buffer_view(const hh_iree_buffer_t* buffer) { return buffer->view; }

iree_hal_buffer_t* hh_buffer_memory(const hh_iree_buffer_t* buffer) {
  return iree_hal_buffer_view_buffer(buffer->view);
}

bool hh_buffer_is_read_only(const hh_iree_buffer_t* buffer) { return buffer->read_only; }

void hh_iree_buffer_free(hh_iree_buffer_t* buffer) {
  if (!buffer) return;
  iree_hal_buffer_view_release(buffer->view);
  hh_iree_device_free(buffer->device);
  free(buffer);
}

hh_iree_error_t* hh_buffer_wrap(hh_iree_device_t* device, iree_hal_buffer_view_t* view,
                                int32_t origin, bool read_only, hh_iree_buffer_t** out_buffer) {
  hh_iree_buffer_t* buffer = malloc(sizeof(*buffer));
  if (!buffer) return hh_error_out_of_memory();
  iree_hal_buffer_view_retain(view);
  *buffer = (hh_iree_buffer_t){hh_device_retain(device), view, origin, read_only};
  *out_buffer = buffer;
  return NULL;
}

iree_hal_buffer_params_t hh_device_params(void) {
  return (iree_hal_buffer_params_t){
      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT,
      .access = IREE_HAL_MEMORY_ACCESS_ALL,
      .type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
  };
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
  iree_status_t status =
      iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(hh_device_hal(device)),
                                         hh_device_params(), bytes, &memory);
  if (iree_status_is_ok(status)) status = hh_zero(device, memory, bytes);
  if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_create(memory, rank, shape, hh_dtype_element(dtype),
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
      hh_buffer_memory(buffer), rank, shape, hh_dtype_element(dtype),
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
  iree_hal_buffer_t* memory = hh_buffer_memory(buffer);
  if (!hh_iree_device_shares_host_memory(buffer->device)) return NULL;
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
