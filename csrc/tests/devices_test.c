// Runtime, drivers, devices: enumeration, selection, workers, statistics, life and death.

#include "test.h"

static void test_versions(void) {
  CHECK(strncmp(hh_iree_version(), "3.13.", 5) == 0);
  CHECK_EQ(hh_iree_abi_version(), HH_IREE_ABI_VERSION);
  size_t sizes[16] = {0};
  CHECK_EQ(hh_iree_abi_sizes(sizes, 16), 8);
  CHECK_EQ(sizes[0], sizeof(hh_iree_runtime_options_t));
  CHECK_EQ(sizes[4], sizeof(hh_iree_upload_t));
  CHECK_EQ(sizes[7], sizeof(hh_iree_program_options_t));
  CHECK_EQ(hh_iree_abi_sizes(NULL, 0), 8);
}

static void test_drivers(hh_iree_runtime_t* runtime) {
  int found = 0;
  size_t count = 0;
  for (const char* name; (name = hh_iree_runtime_driver(runtime, count)); ++count) {
    if (strcmp(name, "local-task") == 0 || strcmp(name, "local-sync") == 0) ++found;
  }
  CHECK_EQ(found, 2);
  CHECK(hh_iree_runtime_driver(runtime, count + 100) == NULL);
}

static void test_enumeration(hh_iree_runtime_t* runtime) {
  hh_iree_device_list_t* list = NULL;
  OK(hh_iree_device_list_create(runtime, "local-task", &list));
  CHECK_EQ(hh_iree_device_list_count(list), 1);
  hh_iree_device_info_t info = {.struct_size = sizeof(info)};
  OK(hh_iree_device_list_get(list, 0, &info));
  CHECK(strcmp(info.driver, "local-task") == 0);
  CHECK(strcmp(info.id, "default") == 0);
  CHECK(info.name[0] != '\0');
  CHECK_EQ(info.ordinal, 0);
  FAILS(hh_iree_device_list_get(list, 1, &info), HH_IREE_CODE_OUT_OF_RANGE, "device 1 of 1");
  info.struct_size = 0;
  FAILS(hh_iree_device_list_get(list, 0, &info), HH_IREE_CODE_INVALID_ARGUMENT, "struct_size");
  hh_iree_device_list_free(list);
  FAILS(hh_iree_device_list_create(runtime, "abacus", &list), HH_IREE_CODE_NOT_FOUND, "local-task");
  CHECK(list == NULL);
  FAILS(hh_iree_device_list_create(runtime, NULL, &list), HH_IREE_CODE_INVALID_ARGUMENT, "driver");
}

// An older caller knows fewer fields: nothing beyond its size is touched.
static void test_smaller_struct(hh_iree_device_t* device) {
  hh_iree_device_info_t info;
  memset(&info, 0x5a, sizeof(info));
  info.struct_size = offsetof(hh_iree_device_info_t, name);
  OK(hh_iree_device_info(device, &info));
  CHECK(strcmp(info.id, "default") == 0);
  const unsigned char* rest = (const unsigned char*)&info.name;
  CHECK(rest[0] == 0x5a && rest[sizeof(info.name)] == 0x5a);
}

static void test_selection(hh_iree_runtime_t* runtime) {
  const char* good[] = {NULL, "", "default", "0"};
  for (size_t i = 0; i < 4; ++i) {
    const hh_iree_device_options_t options = {
        .struct_size = sizeof(options), .driver = "local-sync", .device = good[i]};
    hh_iree_device_t* device = NULL;
    OK(hh_iree_device_create(runtime, &options, &device));
    hh_iree_device_free(device);
  }
  hh_iree_device_options_t options = {
      .struct_size = sizeof(options), .driver = "local-sync", .device = "7"};
  hh_iree_device_t* device = NULL;
  FAILS(hh_iree_device_create(runtime, &options, &device), HH_IREE_CODE_NOT_FOUND,
        "no device '7'; there are: 0 (default");
  CHECK(device == NULL);
  options.device = "00";
  FAILS(hh_iree_device_create(runtime, &options, &device), HH_IREE_CODE_NOT_FOUND, "'00'");
  options.device = NULL;
  options.driver = "no-such";
  FAILS(hh_iree_device_create(runtime, &options, &device), HH_IREE_CODE_NOT_FOUND, "no-such");
  options.driver = "local-task";
  options.workers = 65;
  FAILS(hh_iree_device_create(runtime, &options, &device), HH_IREE_CODE_INVALID_ARGUMENT, "65");
  FAILS(hh_iree_device_create(runtime, NULL, &device), HH_IREE_CODE_INVALID_ARGUMENT, "options");
  options.struct_size = 0;
  FAILS(hh_iree_device_create(runtime, &options, &device), HH_IREE_CODE_INVALID_ARGUMENT, "size");
}

static void test_memory(hh_iree_device_t* device) {
  hh_iree_memory_stats_t before = {.struct_size = sizeof(before)};
  hh_iree_memory_stats_t after = {.struct_size = sizeof(after)};
  OK(hh_iree_device_memory(device, &before));
  CHECK(before.total_bytes > 0 && before.free_bytes > 0);
  CHECK(before.free_bytes <= before.total_bytes);
  const int64_t dims[] = {1024, 1024};
  hh_iree_buffer_t* buffer = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &buffer));
  OK(hh_iree_device_memory(device, &after));
  CHECK_EQ(after.allocated_bytes - before.allocated_bytes, 4 << 20);
  CHECK(after.peak_bytes >= 4 << 20);
  hh_iree_buffer_free(buffer);
  OK(hh_iree_device_memory(device, &after));
  CHECK_EQ(after.allocated_bytes, before.allocated_bytes);
}

static void test_query(hh_iree_device_t* device) {
  int64_t value = -1;
  OK(hh_iree_device_query(device, "hal.device.id", "*", &value));
  CHECK_EQ(value, 1);
  FAILS(hh_iree_device_query(device, "no-such", "key", &value), HH_IREE_CODE_NOT_FOUND, "no-such");
  CHECK_EQ(value, 0);
  FAILS(hh_iree_device_query(device, NULL, "key", &value), HH_IREE_CODE_INVALID_ARGUMENT,
        "category");
}

static int events;
static void count_event(void* user_data, int32_t level, const char* text) {
  CHECK(user_data == &events);
  CHECK(level >= HH_IREE_LOG_WARN && level <= HH_IREE_LOG_DEBUG);
  CHECK(text[0] != '\0');
  ++events;
}

static void test_log(void) {
  const hh_iree_runtime_options_t options = {
      .struct_size = sizeof(options), .log = count_event, .log_user_data = &events};
  hh_iree_runtime_t* runtime = NULL;
  OK(hh_iree_runtime_create(&options, &runtime));
  hh_iree_device_t* device = test_device(runtime, "local-sync", 0);
  CHECK(events > 0);
  hh_iree_device_free(device);
  hh_iree_runtime_free(runtime);
}

// Handles are freed parents first: children keep what they need.
static void test_any_order(void) {
  hh_iree_runtime_t* runtime = test_runtime();
  hh_iree_device_t* device = test_device(runtime, "local-task", 2);
  const int64_t dims[] = {64, 8};
  hh_iree_buffer_t* buffer = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &buffer));
  hh_iree_program_t* program = test_program(device, "scalars");
  hh_iree_call_t* call = NULL;
  OK(hh_iree_call_create(program, "scalars.add", &call));
  hh_iree_runtime_free(runtime);
  hh_iree_device_free(device);
  hh_iree_program_free(program);
  OK(hh_iree_call_set_i32(call, 0, 1));
  OK(hh_iree_call_set_i64(call, 1, 2));
  OK(hh_iree_call_set_f32(call, 2, 3));
  OK(hh_iree_call_invoke(call));
  hh_iree_call_free(call);
  float value = 1;
  OK(hh_iree_buffer_read(buffer, 64, &value, sizeof(value)));
  CHECK(value == 0);
  hh_iree_buffer_free(buffer);
}

static void test_null_frees(void) {
  hh_iree_error_free(NULL);
  hh_iree_runtime_free(NULL);
  hh_iree_device_list_free(NULL);
  hh_iree_device_free(NULL);
  hh_iree_buffer_free(NULL);
  hh_iree_program_free(NULL);
  hh_iree_call_free(NULL);
}

int main(void) {
  test_versions();
  test_null_frees();
  for (int round = 0; round < 3; ++round) {
    hh_iree_runtime_t* runtime = test_runtime();
    test_drivers(runtime);
    test_enumeration(runtime);
    test_selection(runtime);
    for (uint32_t workers = 0; workers <= 2; ++workers) {
      hh_iree_device_t* device = test_device(runtime, "local-task", workers);
      test_smaller_struct(device);
      test_memory(device);
      test_query(device);
      CHECK_EQ(hh_iree_device_import_alignment(device), 64);
      CHECK(hh_iree_device_shares_host_memory(device));
      hh_iree_device_free(device);
    }
    hh_iree_runtime_free(runtime);
    test_any_order();
  }
  test_log();
  for (int i = 0; i < 20; ++i) {
    hh_iree_runtime_t* runtime = test_runtime();
    hh_iree_device_t* one = test_device(runtime, "local-task", 1);
    hh_iree_device_t* two = test_device(runtime, "local-task", 2);
    hh_iree_device_free(one);
    hh_iree_device_free(two);
    hh_iree_runtime_free(runtime);
  }
  puts("devices: ok");
  return 0;
}
