// One driver that is not local, named by $HH_TEST_DRIVER: enumeration, uploads, several calls with
// different inputs, a cache. Exits with 77 when the driver has no device here, after checking that
// the error says why.

#include <stdatomic.h>
#include <unistd.h>

#include "test.h"

// Releases come from the driver's own threads, and may come a moment after the last handle is freed.
static void count_atomically(void* user_data) { atomic_fetch_add((atomic_int*)user_data, 1); }

static void wait_for(atomic_int* count, int expected) {
  for (int i = 0; i < 2000 && atomic_load(count) < expected; ++i) usleep(5000);
  CHECK_EQ(atomic_load(count), expected);
}

static hh_iree_device_t* open_by(hh_iree_runtime_t* runtime, const char* driver,
                                 const char* selector) {
  const hh_iree_device_options_t options = {
      .struct_size = sizeof(options), .driver = driver, .device = selector};
  hh_iree_device_t* device = NULL;
  OK(hh_iree_device_create(runtime, &options, &device));
  return device;
}

// By ordinal and by id, the same device is opened.
static void test_selection(hh_iree_runtime_t* runtime, const hh_iree_device_list_t* list) {
  for (size_t i = 0; i < hh_iree_device_list_count(list); ++i) {
    hh_iree_device_info_t info = {.struct_size = sizeof(info)}, opened = info;
    OK(hh_iree_device_list_get(list, i, &info));
    printf("%s:%zu %s (%s)\n", info.driver, info.ordinal, info.id, info.name);
    char ordinal[24];
    snprintf(ordinal, sizeof(ordinal), "%zu", i);
    const char* selectors[] = {ordinal, info.id};
    for (int j = 0; j < 2; ++j) {
      hh_iree_device_t* device = open_by(runtime, info.driver, selectors[j]);
      OK(hh_iree_device_info(device, &opened));
      CHECK_EQ(opened.ordinal, i);
      CHECK(strcmp(opened.id, info.id) == 0);
      hh_iree_device_free(device);
    }
  }
}

static void test_uploads(hh_iree_device_t* device) {
  const size_t size = 1 << 16;
  unsigned char* data = aligned_alloc(4096, size);
  unsigned char* back = malloc(size);
  for (size_t i = 0; i < size; ++i) data[i] = (unsigned char)(i * 7 + (i >> 8));
  atomic_int released = 0;
  hh_iree_upload_t upload = {.struct_size = sizeof(upload),
                             .data = data,
                             .length = size,
                             .dtype = HH_IREE_DTYPE_U4,
                             .rank = 2,
                             .dims = {256, 512},
                             .release = count_atomically,
                             .release_user_data = &released};
  for (int32_t policy = HH_IREE_UPLOAD_AUTO; policy <= HH_IREE_UPLOAD_PREFER_IMPORT; ++policy) {
    hh_iree_buffer_t* buffer = NULL;
    upload.policy = policy;
    OK(hh_iree_buffer_upload(device, &upload, &buffer));
    printf("policy %d: origin %d\n", policy, hh_iree_buffer_origin(buffer));
    if (policy != HH_IREE_UPLOAD_PREFER_IMPORT) {
      CHECK_EQ(hh_iree_buffer_origin(buffer), HH_IREE_ORIGIN_COPIED);
    }
    OK(hh_iree_buffer_read(buffer, 0, back, size));
    CHECK(memcmp(back, data, size) == 0);
    OK(hh_iree_buffer_read(buffer, 1001, back, 333));
    CHECK(memcmp(back, data + 1001, 333) == 0);
    hh_iree_buffer_free(buffer);
  }
  wait_for(&released, 3);
  const int64_t dims[] = {1001};
  hh_iree_buffer_t* zeros = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_U8, 1, dims, &zeros));
  OK(hh_iree_buffer_write(zeros, 500, data, 3));
  OK(hh_iree_buffer_read(zeros, 0, back, 1001));
  for (int i = 0; i < 1001; ++i) CHECK_EQ(back[i], i >= 500 && i < 503 ? data[i - 500] : 0);
  hh_iree_buffer_free(zeros);
  free(back);
  free(data);
}

// On Vulkan with default flags every call after the first reads the first call's inputs.
static void test_calls(hh_iree_device_t* device) {
  hh_iree_program_t* program = test_program(device, "matvec");
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "matvec.apply", &call));
  const int64_t w_dims[] = {16, 32}, x_dims[] = {32, 1};
  float w[16 * 32], x[32], y[16];
  for (int i = 0; i < 16 * 32; ++i) w[i] = (float)(i % 5);
  hh_iree_buffer_t* weight = test_upload(device, HH_IREE_DTYPE_F32, 2, w_dims, w, sizeof(w));
  OK(hh_iree_call_set_buffer(call, 0, weight));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 32; ++i) x[i] = (float)(round * 10 + i);
    hh_iree_buffer_t* input = test_upload(device, HH_IREE_DTYPE_F32, 2, x_dims, x, sizeof(x));
    OK(hh_iree_call_set_buffer(call, 1, input));
    hh_iree_buffer_free(input);
    OK(hh_iree_call_invoke(call));
    hh_iree_buffer_t* result = NULL;
    OK(hh_iree_call_result_buffer(call, 0, &result));
    OK(hh_iree_buffer_read(result, 0, y, sizeof(y)));
    hh_iree_buffer_free(result);
    for (int i = 0; i < 16; ++i) {
      double expected = 0;
      for (int j = 0; j < 32; ++j) expected += w[i * 32 + j] * x[j];
      CHECK_NEAR(y[i], expected);
    }
  }
  hh_iree_buffer_free(weight);
  hh_iree_call_free(call);
  hh_iree_program_free(program);
}

static void test_cache(hh_iree_device_t* device) {
  hh_iree_program_t* program = test_program(device, "kv");
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "kv.update", &call));
  const int64_t dims[] = {64, 8}, row_dims[] = {1, 8};
  hh_iree_buffer_t* cache = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &cache));
  OK(hh_iree_call_set_buffer(call, 0, cache));
  for (int32_t step = 0; step < 8; ++step) {
    float row[8];
    for (int i = 0; i < 8; ++i) row[i] = (float)(step * 10 + i);
    hh_iree_buffer_t* new_row = test_upload(device, HH_IREE_DTYPE_F32, 2, row_dims, row, sizeof(row));
    hh_iree_buffer_t* position = test_upload(device, HH_IREE_DTYPE_I32, 0, NULL, &step, 4);
    OK(hh_iree_call_set_buffer(call, 1, new_row));
    OK(hh_iree_call_set_buffer(call, 2, position));
    hh_iree_buffer_free(new_row);
    hh_iree_buffer_free(position);
    OK(hh_iree_call_invoke(call));
  }
  float all[64 * 8];
  OK(hh_iree_buffer_read(cache, 0, all, sizeof(all)));
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 8; ++j) CHECK_NEAR(all[i * 8 + j], i < 8 ? i * 10 + j : 0);
  }
  hh_iree_buffer_free(cache);
  hh_iree_call_free(call);
  hh_iree_program_free(program);
}

static void test_parameters(hh_iree_device_t* device) {
  size_t length = 0;
  unsigned char* data = test_module("parameters", &length);
  float w[16 * 32], b[16], x[32], y[16];
  for (int i = 0; i < 16 * 32; ++i) w[i] = (float)(i % 3);
  for (int i = 0; i < 16; ++i) b[i] = (float)i;
  for (int i = 0; i < 32; ++i) x[i] = 1;
  const hh_iree_module_t module = {.struct_size = sizeof(module), .data = data, .length = length};
  hh_iree_parameter_t parameters[2] = {
      {.struct_size = sizeof(parameters[0]), .scope = "model", .key = "weight", .data = w,
       .length = sizeof(w)},
      {.struct_size = sizeof(parameters[0]), .scope = "model", .key = "bias", .data = b,
       .length = sizeof(b)},
  };
  const hh_iree_program_options_t options = {.struct_size = sizeof(options),
                                             .modules = &module,
                                             .module_count = 1,
                                             .parameters = parameters,
                                             .parameter_count = 2};
  hh_iree_program_t* program = NULL;
  OK(hh_iree_program_create(device, &options, &program));
  free(data);
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "parameters.apply", &call));
  const int64_t x_dims[] = {32, 1};
  hh_iree_buffer_t* input = test_upload(device, HH_IREE_DTYPE_F32, 2, x_dims, x, sizeof(x));
  OK(hh_iree_call_set_buffer(call, 0, input));
  hh_iree_buffer_free(input);
  OK(hh_iree_call_invoke(call));
  hh_iree_buffer_t* result = NULL;
  OK(hh_iree_call_result_buffer(call, 0, &result));
  OK(hh_iree_buffer_read(result, 0, y, sizeof(y)));
  for (int i = 0; i < 16; ++i) {
    double expected = b[i];
    for (int j = 0; j < 32; ++j) expected += w[i * 32 + j];
    CHECK_NEAR(y[i], expected);
  }
  hh_iree_buffer_free(result);
  hh_iree_call_free(call);
  hh_iree_program_free(program);
}

int main(void) {
  const char* driver = getenv("HH_TEST_DRIVER");
  CHECK(driver != NULL);
  hh_iree_runtime_t* runtime = test_runtime();
  hh_iree_device_list_t* list = NULL;
  hh_iree_error_t* error = hh_iree_device_list_create(runtime, driver, &list);
  if (error || hh_iree_device_list_count(list) == 0) {
    printf("no device: %s\n", error ? hh_iree_error_message(error) : "the driver lists none");
    if (error) CHECK_EQ(hh_iree_error_code(error), HH_IREE_CODE_UNAVAILABLE);
    hh_iree_error_free(error);
    hh_iree_device_list_free(list);
    hh_iree_runtime_free(runtime);
    return 77;
  }
  test_selection(runtime, list);
  hh_iree_device_list_free(list);
  hh_iree_device_t* device = open_by(runtime, driver, NULL);
  CHECK(!hh_iree_device_shares_host_memory(device));
  CHECK(hh_iree_device_import_alignment(device) >= 4096);
  const char* vulkan[] = {"vulkan.device", "api_version"};
  const char* cuda[] = {"cuda.device", "compute_capability_major"};
  const char** key = strcmp(driver, "cuda") == 0 ? cuda : vulkan;
  int64_t told = 0;
  OK(hh_iree_device_query(device, key[0], key[1], &told));
  CHECK(told > 0);
  test_uploads(device);
  test_calls(device);
  test_cache(device);
  test_parameters(device);
  hh_iree_memory_stats_t stats = {.struct_size = sizeof(stats)};
  OK(hh_iree_device_memory(device, &stats));
  printf("peak %llu, still allocated %llu, largest %llu\n", (unsigned long long)stats.peak_bytes,
         (unsigned long long)stats.allocated_bytes,
         (unsigned long long)stats.max_allocation_bytes);
  hh_iree_device_free(device);
  hh_iree_runtime_free(runtime);
  puts("driver: ok");
  return 0;
}
