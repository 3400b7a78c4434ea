// Calls: types, scalars, caches in place, devices side by side, errors.

#include "test.h"

static void test_types(hh_iree_device_t* device) {
  hh_iree_program_t* program = test_program(device, "types");
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "types.mix", &call));
  CHECK_EQ(hh_iree_call_argument_count(call), 9);
  CHECK_EQ(hh_iree_call_result_count(call), 9);
  const int64_t dims[] = {8};
  const float f32[8] = {0, 1, -1, 0.5f, 1e6f, -1e-3f, 3, 4};
  const uint16_t f16[8] = {0x0000, 0x3c00, 0xbc00, 0x3800, 0x7bff, 0x4000, 0x0001, 0x4200};
  const uint16_t bf16[8] = {0x0000, 0x3f80, 0xbf80, 0x3f00, 0x4049, 0x4000, 0x4120, 0xc2c8};
  const int8_t i8[8] = {0, 1, -1, 127, -128, 5, -5, 64};
  const uint8_t u8[8] = {0, 1, 127, 128, 255, 200, 3, 4};
  const uint8_t i4[4] = {0x10, 0x7f, 0x98, 0x32};  // 0 1 -1 7 -8 -7 2 3: the low nibble is first
  const uint8_t u4[4] = {0x10, 0x7f, 0x98, 0x32};  // 0 1 15 7 8 9 2 3
  const int32_t i32[8] = {0, 1, -1, 65536, -65536, 7, 8, 9};
  const uint32_t u32[8] = {0, 1, 1u << 31, 3000000000u, 4, 5, 6, 7};
  const void* data[] = {f32, f16, bf16, i8, u8, i4, u4, i32, u32};
  const size_t lengths[] = {32, 16, 16, 8, 8, 4, 4, 32, 32};
  const int32_t dtypes[] = {HH_IREE_DTYPE_F32, HH_IREE_DTYPE_F16, HH_IREE_DTYPE_BF16,
                            HH_IREE_DTYPE_I8,  HH_IREE_DTYPE_U8,  HH_IREE_DTYPE_I4,
                            HH_IREE_DTYPE_U4,  HH_IREE_DTYPE_I32, HH_IREE_DTYPE_U32};
  for (size_t i = 0; i < 9; ++i) {
    CHECK_EQ(hh_iree_call_argument_kind(call, i), HH_IREE_KIND_BUFFER);
    hh_iree_buffer_t* buffer = test_upload(device, dtypes[i], 1, dims, data[i], lengths[i]);
    OK(hh_iree_call_set_buffer(call, i, buffer));
    hh_iree_buffer_free(buffer);
  }
  OK(hh_iree_call_invoke(call));
  const float e0[8] = {0, 2, -2, 1, 2e6f, -2e-3f, 6, 8};
  const float e1[8] = {0, 1, -1, 0.5f, 65504, 2, 5.9604645e-8f, 3};
  const float e2[8] = {0, 1, -1, 0.5f, 3.140625f, 2, 10, -100};
  const float e3[8] = {0, 1, -1, 127, -128, 5, -5, 64};
  const float e4[8] = {0, 1, 127, 128, 255, 200, 3, 4};
  const float e5[8] = {0, 1, -1, 7, -8, -7, 2, 3};
  const float e6[8] = {0, 1, 15, 7, 8, 9, 2, 3};
  const float e7[8] = {0, 1, -1, 65536, -65536, 7, 8, 9};
  const float e8[8] = {0, 1, 2147483648.0f, 3e9f, 4, 5, 6, 7};
  const float* expected[] = {e0, e1, e2, e3, e4, e5, e6, e7, e8};
  for (size_t i = 0; i < 9; ++i) test_expect_f32(call, i, expected[i], 8);
  hh_iree_call_free(call);

  OK(hh_iree_call_create(program, "types.narrow", &call));
  const float in[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  hh_iree_buffer_t* x = test_upload(device, HH_IREE_DTYPE_F32, 1, dims, in, sizeof(in));
  OK(hh_iree_call_set_buffer(call, 0, x));
  OK(hh_iree_call_invoke(call));
  const int32_t results[] = {HH_IREE_DTYPE_F16, HH_IREE_DTYPE_BF16, HH_IREE_DTYPE_I8,
                             HH_IREE_DTYPE_U8,  HH_IREE_DTYPE_I32,  HH_IREE_DTYPE_U32};
  for (size_t i = 0; i < 6; ++i) {
    hh_iree_buffer_t* result = NULL;
    OK(hh_iree_call_result_buffer(call, i, &result));
    CHECK_EQ(hh_iree_buffer_dtype(result), results[i]);
    hh_iree_buffer_free(result);
  }
  hh_iree_buffer_free(x);
  hh_iree_call_free(call);
  hh_iree_program_free(program);
}

static void test_scalars(hh_iree_device_t* device) {
  hh_iree_program_t* program = test_program(device, "scalars");
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "scalars.add", &call));
  int32_t i32 = 0;
  int64_t i64 = 0;
  float f32 = 0;
  FAILS(hh_iree_call_result_i32(call, 0, &i32), HH_IREE_CODE_FAILED_PRECONDITION, "no results");
  FAILS(hh_iree_call_invoke(call), HH_IREE_CODE_INVALID_ARGUMENT, "argument 0 of 3 (an i32)");
  FAILS(hh_iree_call_set_i64(call, 0, 1), HH_IREE_CODE_INVALID_ARGUMENT, "is an i32, not an i64");
  FAILS(hh_iree_call_set_buffer(call, 0, NULL), HH_IREE_CODE_INVALID_ARGUMENT, "a buffer");
  FAILS(hh_iree_call_set_i32(call, 3, 1), HH_IREE_CODE_OUT_OF_RANGE, "argument 3");
  FAILS(hh_iree_call_set_i32(NULL, 0, 1), HH_IREE_CODE_INVALID_ARGUMENT, "call is NULL");
  OK(hh_iree_call_set_i64(call, 1, (int64_t)1 << 40));
  OK(hh_iree_call_set_f32(call, 2, 1.25f));
  for (int32_t i = 0; i < 100; ++i) {
    OK(hh_iree_call_set_i32(call, 0, i));  // the others stay set
    OK(hh_iree_call_invoke(call));
    OK(hh_iree_call_result_i32(call, 0, &i32));
    OK(hh_iree_call_result_i64(call, 1, &i64));
    OK(hh_iree_call_result_f32(call, 2, &f32));
    CHECK_EQ(i32, i + 1);
    CHECK_EQ(i64, ((int64_t)1 << 40) + 2);
    CHECK(f32 == 1.75f);
  }
  FAILS(hh_iree_call_result_i32(call, 1, &i32), HH_IREE_CODE_INVALID_ARGUMENT, "is an i64");
  FAILS(hh_iree_call_result_i32(call, 3, &i32), HH_IREE_CODE_OUT_OF_RANGE, "result 3");
  hh_iree_buffer_t* buffer = NULL;
  FAILS(hh_iree_call_result_buffer(call, 0, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "is an i32");
  hh_iree_call_drop_results(call);
  FAILS(hh_iree_call_result_i32(call, 0, &i32), HH_IREE_CODE_FAILED_PRECONDITION, "no results");
  hh_iree_call_clear(call);
  FAILS(hh_iree_call_invoke(call), HH_IREE_CODE_INVALID_ARGUMENT, "not set");
  hh_iree_call_free(call);
  hh_iree_program_free(program);
}

static void test_cache_in_place(hh_iree_device_t* device) {
  hh_iree_program_t* program = test_program(device, "kv");
  const int64_t dims[] = {64, 8};
  const int64_t row_dims[] = {1, 8};
  hh_iree_buffer_t* cache = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &cache));
  const void* address = hh_iree_buffer_host_address(cache);
  CHECK(address != NULL);
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "kv.update", &call));
  OK(hh_iree_call_set_buffer(call, 0, cache));
  for (int32_t step = 0; step < 64; ++step) {
    float row[8];
    for (int i = 0; i < 8; ++i) row[i] = (float)(100 * step + i);
    hh_iree_buffer_t* row_buffer =
        test_upload(device, HH_IREE_DTYPE_F32, 2, row_dims, row, sizeof(row));
    hh_iree_buffer_t* position = test_upload(device, HH_IREE_DTYPE_I32, 0, NULL, &step, 4);
    OK(hh_iree_call_set_buffer(call, 1, row_buffer));
    OK(hh_iree_call_set_buffer(call, 2, position));
    hh_iree_buffer_free(row_buffer);
    hh_iree_buffer_free(position);
    OK(hh_iree_call_invoke(call));
    hh_iree_buffer_t* result = NULL;
    OK(hh_iree_call_result_buffer(call, 0, &result));
    CHECK(hh_iree_buffer_host_address(result) == address);
    hh_iree_buffer_free(result);
  }
  float all[64 * 8];
  OK(hh_iree_buffer_read(cache, 0, all, sizeof(all)));
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 8; ++j) CHECK_NEAR(all[i * 8 + j], 100 * i + j);
  }
  hh_iree_call_free(call);

  // Two caches do not write into each other, over several steps.
  hh_iree_buffer_t *k = NULL, *v = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &k));
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &v));
  OK(hh_iree_call_create(program, "kv.step", &call));
  OK(hh_iree_call_set_buffer(call, 0, k));
  OK(hh_iree_call_set_buffer(call, 1, v));
  double sum = 0;
  for (int64_t step = 0; step < 5; ++step) {
    float row[8];
    for (int i = 0; i < 8; ++i) row[i] = (float)(step + 1);
    hh_iree_buffer_t* row_buffer =
        test_upload(device, HH_IREE_DTYPE_F32, 2, row_dims, row, sizeof(row));
    OK(hh_iree_call_set_buffer(call, 2, row_buffer));
    hh_iree_buffer_free(row_buffer);
    OK(hh_iree_call_set_i64(call, 3, step * 3));
    OK(hh_iree_call_invoke(call));
    sum += 3.0 * 8 * (double)(step + 1);
    const float expected = (float)sum;
    test_expect_f32(call, 0, &expected, 1);
  }
  float k_row[8], v_row[8];
  OK(hh_iree_buffer_read(k, 12 * 32, k_row, 32));
  OK(hh_iree_buffer_read(v, 12 * 32, v_row, 32));
  CHECK(k_row[0] == 5 && v_row[0] == 10);
  hh_iree_buffer_free(k);
  hh_iree_buffer_free(v);
  hh_iree_call_free(call);
  hh_iree_buffer_free(cache);
  hh_iree_program_free(program);
}

static void test_bad_calls(hh_iree_device_t* device, hh_iree_device_t* other) {
  hh_iree_program_t* program = test_program(device, "matvec");
  hh_iree_call_t* call = NULL;
  FAILS(hh_iree_call_create(program, "matvec.nothing", &call), HH_IREE_CODE_NOT_FOUND,
        "matvec.nothing");
  CHECK(call == NULL);
  FAILS(hh_iree_program_has_function(program, "other.apply"), HH_IREE_CODE_NOT_FOUND, "other");
  FAILS(hh_iree_program_has_function(program, "apply"), HH_IREE_CODE_INVALID_ARGUMENT, "apply");
  OK(hh_iree_call_create(program, "matvec.apply", &call));
  const int64_t w_dims[] = {16, 32}, x_dims[] = {32, 1}, wrong_dims[] = {16, 2};
  hh_iree_buffer_t *w = NULL, *x = NULL, *wrong = NULL, *half = NULL, *foreign = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, w_dims, &w));
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, x_dims, &x));
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, wrong_dims, &wrong));
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F16, 2, x_dims, &half));
  OK(hh_iree_buffer_allocate(other, HH_IREE_DTYPE_F32, 2, x_dims, &foreign));
  OK(hh_iree_call_set_buffer(call, 0, w));
  FAILS(hh_iree_call_invoke(call), HH_IREE_CODE_INVALID_ARGUMENT, "argument 1 of 2");
  FAILS(hh_iree_call_set_buffer(call, 2, x), HH_IREE_CODE_OUT_OF_RANGE, "with 2");
  FAILS(hh_iree_call_set_buffer(call, 1, foreign), HH_IREE_CODE_INVALID_ARGUMENT, "device");
  FAILS(hh_iree_call_set_buffer(call, 1, NULL), HH_IREE_CODE_INVALID_ARGUMENT, "NULL");
  OK(hh_iree_call_set_buffer(call, 1, wrong));
  FAILS(hh_iree_call_invoke(call), HH_IREE_CODE_INVALID_ARGUMENT, "shape");
  OK(hh_iree_call_set_buffer(call, 1, half));
  FAILS(hh_iree_call_invoke(call), HH_IREE_CODE_INVALID_ARGUMENT, "f16");
  hh_iree_buffer_t* result = NULL;
  FAILS(hh_iree_call_result_buffer(call, 0, &result), HH_IREE_CODE_FAILED_PRECONDITION, "");
  // After failures the call is as good as before.
  OK(hh_iree_call_set_buffer(call, 1, x));
  OK(hh_iree_call_invoke(call));
  OK(hh_iree_call_result_buffer(call, 0, &result));
  hh_iree_call_free(call);
  float y[16];
  OK(hh_iree_buffer_read(result, 0, y, sizeof(y)));  // outlives the call
  hh_iree_buffer_free(result);
  hh_iree_buffer_free(w);
  hh_iree_buffer_free(x);
  hh_iree_buffer_free(wrong);
  hh_iree_buffer_free(half);
  hh_iree_buffer_free(foreign);
  hh_iree_program_free(program);
}

int main(void) {
  hh_iree_runtime_t* runtime = test_runtime();
  hh_iree_device_t* sync = test_device(runtime, "local-sync", 0);
  for (uint32_t workers = 0; workers <= 2; ++workers) {
    // With 0, local-sync itself. Two devices live at once throughout.
    hh_iree_device_t* device = workers ? test_device(runtime, "local-task", workers)
                                       : test_device(runtime, "local-sync", 0);
    test_types(device);
    test_scalars(device);
    test_cache_in_place(device);
    test_bad_calls(device, sync);
    test_cache_in_place(sync);
    hh_iree_device_free(device);
  }
  hh_iree_device_free(sync);
  hh_iree_runtime_free(runtime);
  puts("calls: ok");
  return 0;
}
