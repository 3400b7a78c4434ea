// What the C tests share: checks that say what failed, files, and devices.

#ifndef HALFHITCH_CSRC_TESTS_TEST_H_
#define HALFHITCH_CSRC_TESTS_TEST_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla_iree.h"

// Ends the test with what was expected and where.
#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);     \
      exit(1);                                                                    \
    }                                                                             \
  } while (0)

#define CHECK_EQ(actual, expected)                                                     \
  do {                                                                                 \
    const long long actual_ = (long long)(actual), expected_ = (long long)(expected);  \
    if (actual_ != expected_) {                                                        \
      fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #actual,    \
              actual_, expected_);                                                     \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

#define CHECK_NEAR(actual, expected)                                                \
  do {                                                                              \
    const double actual_ = (actual), expected_ = (expected);                        \
    const double off_ = actual_ > expected_ ? actual_ - expected_ : expected_ - actual_; \
    if (!(off_ <= 1e-4 * (1.0 + (expected_ < 0 ? -expected_ : expected_)))) {       \
      fprintf(stderr, "%s:%d: %s is %g, not %g\n", __FILE__, __LINE__, #actual,     \
              actual_, expected_);                                                  \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

// The expression must succeed.
#define OK(expression) test_ok(expression, #expression, __FILE__, __LINE__)

// The expression must fail with this code, and with this text somewhere in its message.
#define FAILS(expression, code, text) \
  test_fails(expression, code, text, #expression, __FILE__, __LINE__)

static inline void test_ok(hh_iree_error_t* error, const char* what, const char* file, int line) {
  if (!error) return;
  fprintf(stderr, "%s:%d: %s\n  failed with code %d: %s\n", file, line, what,
          hh_iree_error_code(error), hh_iree_error_message(error));
  exit(1);
}

static inline void test_fails(hh_iree_error_t* error, int32_t code, const char* text,
                              const char* what, const char* file, int line) {
  if (!error) {
    fprintf(stderr, "%s:%d: %s\n  succeeded; code %d was expected\n", file, line, what, code);
    exit(1);
  }
  if (hh_iree_error_code(error) != code || !strstr(hh_iree_error_message(error), text)) {
    fprintf(stderr, "%s:%d: %s\n  failed with code %d, not %d with '%s': %s\n", file, line, what,
            hh_iree_error_code(error), code, text, hh_iree_error_message(error));
    exit(1);
  }
  hh_iree_error_free(error);
}

// The file $HH_TEST_MODULES/<name>.vmfb.
static inline unsigned char* test_module(const char* name, size_t* out_length) {
  const char* folder = getenv("HH_TEST_MODULES");
  char path[512];
  CHECK(folder != NULL);
  snprintf(path, sizeof(path), "%s/%s.vmfb", folder, name);
  FILE* file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "cannot open %s\n", path);
    exit(1);
  }
  CHECK(fseek(file, 0, SEEK_END) == 0);
  const long length = ftell(file);
  CHECK(length > 0);
  rewind(file);
  unsigned char* data = aligned_alloc(64, ((size_t)length + 63) / 64 * 64);
  CHECK(data != NULL);
  CHECK(fread(data, 1, (size_t)length, file) == (size_t)length);
  fclose(file);
  *out_length = (size_t)length;
  return data;
}

static inline hh_iree_runtime_t* test_runtime(void) {
  hh_iree_runtime_t* runtime = NULL;
  OK(hh_iree_runtime_create(NULL, &runtime));
  return runtime;
}

static inline hh_iree_device_t* test_device(hh_iree_runtime_t* runtime, const char* driver,
                                            uint32_t workers) {
  const hh_iree_device_options_t options = {
      .struct_size = sizeof(options), .driver = driver, .workers = workers};
  hh_iree_device_t* device = NULL;
  OK(hh_iree_device_create(runtime, &options, &device));
  return device;
}

static inline hh_iree_program_t* test_program(hh_iree_device_t* device, const char* name) {
  size_t length = 0;
  unsigned char* data = test_module(name, &length);
  const hh_iree_module_t module = {.struct_size = sizeof(module), .data = data, .length = length};
  const hh_iree_program_options_t options = {
      .struct_size = sizeof(options), .modules = &module, .module_count = 1};
  hh_iree_program_t* program = NULL;
  OK(hh_iree_program_create(device, &options, &program));
  free(data);  // without a release callback the module was copied
  return program;
}

static inline hh_iree_buffer_t* test_upload(hh_iree_device_t* device, int32_t dtype, size_t rank,
                                            const int64_t* dims, const void* data, size_t length) {
  hh_iree_upload_t upload = {.struct_size = sizeof(upload),
                             .data = data,
                             .length = length,
                             .dtype = dtype,
                             .policy = HH_IREE_UPLOAD_COPY,
                             .rank = rank};
  for (size_t i = 0; i < rank; ++i) upload.dims[i] = dims[i];
  hh_iree_buffer_t* buffer = NULL;
  OK(hh_iree_buffer_upload(device, &upload, &buffer));
  return buffer;
}

// Checks that result `result` of an invoked call is these f32 values, at most 64.
static inline void test_expect_f32(hh_iree_call_t* call, size_t result, const float* expected,
                                   size_t count) {
  hh_iree_buffer_t* buffer = NULL;
  float back[64];
  CHECK(count <= 64);
  OK(hh_iree_call_result_buffer(call, result, &buffer));
  CHECK_EQ(hh_iree_buffer_dtype(buffer), HH_IREE_DTYPE_F32);
  CHECK_EQ(hh_iree_buffer_byte_length(buffer), count * 4);
  CHECK_EQ(hh_iree_buffer_origin(buffer), HH_IREE_ORIGIN_RESULT);
  OK(hh_iree_buffer_read(buffer, 0, back, count * 4));
  for (size_t i = 0; i < count; ++i) CHECK_NEAR(back[i], expected[i]);
  hh_iree_buffer_free(buffer);
}

// Counts releases; for hh_iree_release_fn_t.
static inline void test_count_release(void* user_data) { ++*(int*)user_data; }

#endif  // HALFHITCH_CSRC_TESTS_TEST_H_
