// What lets an older caller work with a newer library: versions, and structs that say their size.

#include <stdlib.h>
#include <string.h>

#include "internal.h"

#ifndef HH_IREE_VERSION
#error "HH_IREE_VERSION must be the version in the runtime's stamp, as a string"
#endif

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

hh_iree_error_t* hh_read_struct(const char* what, const void* source, void* target, size_t size) {
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

hh_iree_error_t* hh_write_struct(const char* what, const void* source, void* target, size_t size) {
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

hh_iree_error_t* hh_read_array(const char* what, const void* source, size_t count, size_t size,
                               void** out_array) {
  *out_array = NULL;
  if (count == 0) return NULL;
  if (!source) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: the array is NULL", what);
  size_t stride = 0;
  memcpy(&stride, source, sizeof(stride));
  char* array = calloc(count, size);
  if (!array) return hh_error_out_of_memory();
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
