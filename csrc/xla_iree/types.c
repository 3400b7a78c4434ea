// Element types and shapes.

#include "internal.h"

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

iree_hal_element_type_t hh_dtype_element(int32_t dtype) { return hh_dtypes[dtype].element; }

int32_t hh_dtype_from_element(iree_hal_element_type_t element) {
  for (int32_t i = 1; i < HH_DTYPE_COUNT; ++i) {
    if (hh_dtypes[i].element == element) return i;
  }
  return HH_IREE_DTYPE_NONE;
}

hh_iree_error_t* hh_shape(int32_t dtype, size_t rank, const int64_t* dims, iree_hal_dim_t* out_dims,
                          size_t* out_bytes) {
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
