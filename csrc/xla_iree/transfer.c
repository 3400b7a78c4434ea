// Reads and writes of the bytes of a buffer. Each waits for its end.

#include "internal.h"

iree_status_t hh_zero(hh_iree_device_t* device, iree_hal_buffer_t* memory,
                      iree_device_size_t length) {
  if (length == 0) return iree_ok_status();
  if (iree_all_bits_set(iree_hal_buffer_memory_type(memory), IREE_HAL_MEMORY_TYPE_HOST_VISIBLE) &&
      iree_any_bit_set(iree_hal_buffer_allowed_usage(memory),
                       IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED)) {
    return iree_hal_buffer_map_zero(memory, 0, length);
  }
  iree_hal_semaphore_t* semaphore = NULL;
  iree_status_t status =
      iree_hal_semaphore_create(hh_device_hal(device), IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &semaphore);
  if (iree_status_is_ok(status)) {
    uint64_t value = 1;
    const uint32_t pattern = 0;
    const iree_hal_semaphore_list_t signal = {1, &semaphore, &value};
    // A fill wants a multiple of its pattern's size.
    const iree_host_size_t width = length % sizeof(pattern) == 0 ? sizeof(pattern) : 1;
    status = iree_hal_device_queue_fill(hh_device_hal(device), IREE_HAL_QUEUE_AFFINITY_ANY,
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
  if (!hh_buffer_is_read_only(buffer)) return NULL;
  return hh_error(HH_IREE_CODE_PERMISSION_DENIED,
                  "the buffer is imported memory that was not declared writable");
}

hh_iree_error_t* hh_iree_buffer_read(hh_iree_buffer_t* buffer, uint64_t offset, void* target,
                                     size_t length) {
  HH_NULL_CHECK(buffer);
  hh_iree_error_t* error = hh_check_range(buffer, offset, length, target);
  if (error || length == 0) return error;
  return hh_error_from_status(iree_hal_device_transfer_d2h(
      hh_device_hal(hh_buffer_device(buffer)), hh_buffer_memory(buffer), offset, target, length,
      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
}

hh_iree_error_t* hh_iree_buffer_write(hh_iree_buffer_t* buffer, uint64_t offset, const void* source,
                                      size_t length) {
  HH_NULL_CHECK(buffer);
  hh_iree_error_t* error = hh_check_writable(buffer);
  if (!error) error = hh_check_range(buffer, offset, length, source);
  if (error || length == 0) return error;
  return hh_error_from_status(iree_hal_device_transfer_h2d(
      hh_device_hal(hh_buffer_device(buffer)), source, hh_buffer_memory(buffer), offset, length,
      IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
}

hh_iree_error_t* hh_iree_buffer_zero(hh_iree_buffer_t* buffer) {
  HH_NULL_CHECK(buffer);
  hh_iree_error_t* error = hh_check_writable(buffer);
  if (error) return error;
  return hh_error_from_status(hh_zero(hh_buffer_device(buffer), hh_buffer_memory(buffer),
                                      hh_iree_buffer_byte_length(buffer)));
}
