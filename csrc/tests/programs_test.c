// Programs: modules, parameters, a weight that several share, errors.

#include "test.h"

static void fill_weight(float* w) {
  for (int i = 0; i < 16 * 32; ++i) w[i] = (float)(i % 7) - 3;
}

static void expect_matvec(hh_iree_call_t* call, const float* w, const float* x, const float* b) {
  float expected[16];
  for (int i = 0; i < 16; ++i) {
    expected[i] = b ? b[i] : 0;
    for (int j = 0; j < 32; ++j) expected[i] += w[i * 32 + j] * x[j];
  }
  test_expect_f32(call, 0, expected, 16);
}

// A weight that is the caller's own memory, used by two programs on one device.
static void test_imported_weight(hh_iree_device_t* device) {
  hh_iree_program_t* programs[] = {test_program(device, "matvec"), test_program(device, "matvec")};
  float* w = aligned_alloc(64, 16 * 32 * 4);
  float x[32];
  fill_weight(w);
  for (int i = 0; i < 32; ++i) x[i] = (float)i;
  int released = 0;
  hh_iree_upload_t upload = {.struct_size = sizeof(upload),
                             .data = w,
                             .length = 16 * 32 * 4,
                             .dtype = HH_IREE_DTYPE_F32,
                             .policy = HH_IREE_UPLOAD_REQUIRE_IMPORT,
                             .rank = 2,
                             .dims = {16, 32},
                             .release = test_count_release,
                             .release_user_data = &released};
  hh_iree_buffer_t* weight = NULL;
  OK(hh_iree_buffer_upload(device, &upload, &weight));
  const int64_t x_dims[] = {32, 1};
  hh_iree_buffer_t* x_buffer = test_upload(device, HH_IREE_DTYPE_F32, 2, x_dims, x, sizeof(x));
  hh_iree_call_t* calls[2] = {NULL, NULL};
  for (int i = 0; i < 2; ++i) {
    OK(hh_iree_call_create(programs[i], "matvec.apply", &calls[i]));
    OK(hh_iree_call_set_buffer(calls[i], 0, weight));
    OK(hh_iree_call_set_buffer(calls[i], 1, x_buffer));
  }
  hh_iree_buffer_free(weight);
  hh_iree_buffer_free(x_buffer);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) {
      OK(hh_iree_call_invoke(calls[i]));
      expect_matvec(calls[i], w, x, NULL);
    }
    w[5] += 1;  // seen by the next invocation: there is no copy of it
  }
  CHECK_EQ(released, 0);
  hh_iree_call_free(calls[0]);
  CHECK_EQ(released, 0);
  hh_iree_call_clear(calls[1]);
  CHECK_EQ(released, 1);
  hh_iree_call_free(calls[1]);
  hh_iree_program_free(programs[0]);
  hh_iree_program_free(programs[1]);
  free(w);
}

static void test_parameters(hh_iree_device_t* device) {
  size_t length = 0;
  unsigned char* data = test_module("parameters", &length);
  // The weight is aligned and stays where it is; the bias is not and is copied.
  float* w = aligned_alloc(64, 16 * 32 * 4);
  unsigned char* odd = malloc(16 * 4 + 4);
  float b[16], x[32];
  fill_weight(w);
  for (int i = 0; i < 16; ++i) b[i] = (float)(i * i);
  for (int i = 0; i < 32; ++i) x[i] = 1.0f / (float)(i + 1);
  memcpy(odd + 4, b, sizeof(b));
  int module_released = 0, w_released = 0, b_released = 0;
  const hh_iree_module_t module = {.struct_size = sizeof(module),
                                   .data = data,
                                   .length = length,
                                   .release = test_count_release,
                                   .release_user_data = &module_released};
  hh_iree_parameter_t parameters[2] = {
      {.struct_size = sizeof(parameters[0]),
       .scope = "model",
       .key = "weight",
       .data = w,
       .length = 16 * 32 * 4,
       .release = test_count_release,
       .release_user_data = &w_released},
      {.struct_size = sizeof(parameters[0]),
       .scope = "model",
       .key = "bias",
       .data = odd + 4,
       .length = sizeof(b),
       .release = test_count_release,
       .release_user_data = &b_released},
  };
  hh_iree_program_options_t options = {.struct_size = sizeof(options),
                                       .modules = &module,
                                       .module_count = 1,
                                       .parameters = parameters,
                                       .parameter_count = 2};
  hh_iree_program_t* program = NULL;
  OK(hh_iree_program_create(device, &options, &program));
  CHECK_EQ(w_released, 0);
  CHECK_EQ(b_released, 1);
  CHECK_EQ(module_released, 0);
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "parameters.apply", &call));
  const int64_t x_dims[] = {32, 1};
  hh_iree_buffer_t* x_buffer = test_upload(device, HH_IREE_DTYPE_F32, 2, x_dims, x, sizeof(x));
  OK(hh_iree_call_set_buffer(call, 0, x_buffer));
  hh_iree_buffer_free(x_buffer);
  for (int round = 0; round < 2; ++round) {
    OK(hh_iree_call_invoke(call));
    expect_matvec(call, w, x, b);
    w[40] += 2;  // the parameter is the memory itself
  }
  hh_iree_program_free(program);
  CHECK_EQ(w_released, 0);  // the call keeps the program
  hh_iree_call_free(call);
  CHECK_EQ(w_released, 1);
  CHECK_EQ(module_released, 1);

  // One is missing, one has the wrong size, none is given: errors that say so, and all is released.
  options.parameter_count = 1;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_NOT_FOUND, "bias");
  CHECK(program == NULL);
  CHECK_EQ(w_released, 2);
  CHECK_EQ(module_released, 2);
  options.parameter_count = 2;
  parameters[1].length = 8;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_OUT_OF_RANGE, "bias");
  CHECK_EQ(w_released, 3);
  CHECK_EQ(b_released, 2);
  options.parameter_count = 0;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_NOT_FOUND, "model");
  options.parameter_count = 2;
  parameters[1].key = NULL;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_INVALID_ARGUMENT, "key");
  CHECK_EQ(w_released, 4);
  CHECK_EQ(b_released, 3);
  CHECK_EQ(module_released, 5);
  parameters[1].key = "weight";
  parameters[1].length = 16 * 4;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_NOT_FOUND, "bias");
  free(odd);
  free(w);
  free(data);
}

static void test_bad_modules(hh_iree_device_t* device) {
  size_t length = 0;
  unsigned char* good = test_module("scalars", &length);
  unsigned char* data = aligned_alloc(64, (length + 127) / 64 * 64);
  hh_iree_module_t module = {.struct_size = sizeof(module), .data = data, .length = length};
  const hh_iree_program_options_t options = {
      .struct_size = sizeof(options), .modules = &module, .module_count = 1};
  hh_iree_program_t* program = NULL;

  // At any offset: it is copied to where it must lie.
  const size_t offsets[] = {0, 1, 4, 63};
  int released = 0;
  for (int i = 0; i < 4; ++i) {
    memcpy(data + offsets[i], good, length);
    module.data = data + offsets[i];
    module.release = i % 2 ? test_count_release : NULL;
    module.release_user_data = &released;
    OK(hh_iree_program_create(device, &options, &program));
    OK(hh_iree_program_has_function(program, "scalars.add"));
    hh_iree_program_free(program);
  }
  CHECK_EQ(released, 2);
  module.data = data;
  module.release = NULL;

  memset(data, 0x41, length);
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_INVALID_ARGUMENT, "");
  memset(data, 0, length);
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_INVALID_ARGUMENT, "");
  // Cut short anywhere, it is refused and nothing leaks or crashes.
  for (size_t cut = 1; cut < length; cut += 37) {
    memcpy(data, good, length);
    module.length = cut;
    hh_iree_error_t* error = hh_iree_program_create(device, &options, &program);
    if (error) hh_iree_error_free(error);
    hh_iree_program_free(program);
    program = NULL;
    if (cut < length / 2) CHECK(error != NULL);
  }
  module.length = 0;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_INVALID_ARGUMENT, "empty");
  hh_iree_program_options_t none = options;
  none.module_count = 0;
  FAILS(hh_iree_program_create(device, &none, &program), HH_IREE_CODE_INVALID_ARGUMENT, "module");
  none.module_count = 1;
  none.modules = NULL;
  FAILS(hh_iree_program_create(device, &none, &program), HH_IREE_CODE_INVALID_ARGUMENT, "NULL");
  FAILS(hh_iree_program_create(device, NULL, &program), HH_IREE_CODE_INVALID_ARGUMENT, "options");
  module.length = length;
  FAILS(hh_iree_program_create(NULL, &options, &program), HH_IREE_CODE_INVALID_ARGUMENT, "device");
  free(data);
  free(good);
}

static void test_two_modules(hh_iree_device_t* device) {
  size_t lengths[2];
  unsigned char* data[2] = {test_module("scalars", &lengths[0]), test_module("kv", &lengths[1])};
  hh_iree_module_t modules[2];
  for (int i = 0; i < 2; ++i) {
    modules[i] = (hh_iree_module_t){
        .struct_size = sizeof(modules[i]), .data = data[i], .length = lengths[i]};
  }
  const hh_iree_program_options_t options = {
      .struct_size = sizeof(options), .modules = modules, .module_count = 2};
  hh_iree_program_t* program = NULL;
  OK(hh_iree_program_create(device, &options, &program));
  OK(hh_iree_program_has_function(program, "scalars.add"));
  OK(hh_iree_program_has_function(program, "kv.step"));
  hh_iree_program_free(program);
  modules[1].struct_size += 8;
  FAILS(hh_iree_program_create(device, &options, &program), HH_IREE_CODE_INVALID_ARGUMENT,
        "struct_size");
  free(data[0]);
  free(data[1]);
}

int main(void) {
  hh_iree_runtime_t* runtime = test_runtime();
  hh_iree_device_t* sync = test_device(runtime, "local-sync", 0);
  for (uint32_t workers = 0; workers <= 2; ++workers) {
    // With 0, local-sync itself. Two devices live at once throughout.
    hh_iree_device_t* device = workers ? test_device(runtime, "local-task", workers)
                                       : test_device(runtime, "local-sync", 0);
    test_imported_weight(device);
    test_parameters(device);
    test_two_modules(device);
    test_bad_modules(device);
    hh_iree_device_free(device);
  }
  for (int i = 0; i < 30; ++i) {
    hh_iree_device_t* device = test_device(runtime, "local-task", 1 + (uint32_t)i % 2);
    test_imported_weight(device);
    hh_iree_device_free(device);
  }
  hh_iree_device_free(sync);
  hh_iree_runtime_free(runtime);
  puts("programs: ok");
  return 0;
}
