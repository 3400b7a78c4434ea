// Buffers: every type's round trip, import and copy, ranges, aliases, and what is refused.

#include <pthread.h>

#include "test.h"

static hh_iree_upload_t upload_of(const void* data, size_t length, int32_t policy) {
  hh_iree_upload_t upload = {.struct_size = sizeof(upload),
                             .data = data,
                             .length = length,
                             .dtype = HH_IREE_DTYPE_U8,
                             .policy = policy,
                             .rank = 1};
  upload.dims[0] = (int64_t)length;
  return upload;
}

static void test_round_trips(hh_iree_device_t* device) {
  unsigned char data[1024], back[1024];
  for (int i = 0; i < 1024; ++i) data[i] = (unsigned char)(i * 37 + 11);
  for (int32_t dtype = HH_IREE_DTYPE_F32; dtype <= HH_IREE_DTYPE_BOOL; ++dtype) {
    const uint32_t bits = hh_iree_dtype_bits(dtype);
    CHECK(bits == 4 || bits == 8 || bits == 16 || bits == 32 || bits == 64);
    const int64_t dims[] = {2, 1, 3, 5};
    for (size_t rank = 0; rank <= 4; ++rank) {
      size_t count = 1;
      for (size_t i = 0; i < rank; ++i) count *= (size_t)dims[i];
      const size_t length = (count * bits + 7) / 8;
      hh_iree_buffer_t* buffer = test_upload(device, dtype, rank, dims, data, length);
      CHECK_EQ(hh_iree_buffer_dtype(buffer), dtype);
      CHECK_EQ(hh_iree_buffer_rank(buffer), rank);
      for (size_t i = 0; i < rank; ++i) CHECK_EQ(hh_iree_buffer_dim(buffer, i), dims[i]);
      CHECK_EQ(hh_iree_buffer_dim(buffer, rank), -1);
      CHECK_EQ(hh_iree_buffer_byte_length(buffer), length);
      CHECK_EQ(hh_iree_buffer_origin(buffer), HH_IREE_ORIGIN_COPIED);
      memset(back, 0, sizeof(back));
      OK(hh_iree_buffer_read(buffer, 0, back, length));
      CHECK(memcmp(data, back, length) == 0);
      hh_iree_buffer_free(buffer);
    }
  }
  CHECK_EQ(hh_iree_dtype_bits(HH_IREE_DTYPE_NONE), 0);
  CHECK_EQ(hh_iree_dtype_bits(-1), 0);
  CHECK_EQ(hh_iree_dtype_bits(14), 0);
}

static void test_import(hh_iree_device_t* device) {
  unsigned char* data = aligned_alloc(4096, 8192);
  for (int i = 0; i < 8192; ++i) data[i] = (unsigned char)i;
  int released = 0;
  const int32_t policies[] = {HH_IREE_UPLOAD_AUTO, HH_IREE_UPLOAD_PREFER_IMPORT,
                              HH_IREE_UPLOAD_REQUIRE_IMPORT};
  for (int i = 0; i < 3; ++i) {
    hh_iree_upload_t upload = upload_of(data + 64, 4096, policies[i]);
    upload.release = test_count_release;
    upload.release_user_data = &released;
    hh_iree_buffer_t* buffer = NULL;
    released = 0;
    OK(hh_iree_buffer_upload(device, &upload, &buffer));
    CHECK_EQ(hh_iree_buffer_origin(buffer), HH_IREE_ORIGIN_IMPORTED);
    CHECK(hh_iree_buffer_host_address(buffer) == data + 64);
    CHECK_EQ(released, 0);
    // An alias keeps the memory, too.
    const int64_t dims[] = {32, 32};
    hh_iree_buffer_t* alias = NULL;
    OK(hh_iree_buffer_alias(buffer, HH_IREE_DTYPE_F32, 2, dims, &alias));
    CHECK(hh_iree_buffer_host_address(alias) == data + 64);
    hh_iree_buffer_free(buffer);
    CHECK_EQ(released, 0);
    hh_iree_buffer_free(alias);
    CHECK_EQ(released, 1);
  }
  free(data);
}

static void test_unaligned_goes_by_copy(hh_iree_device_t* device) {
  unsigned char* data = aligned_alloc(4096, 8192);
  for (int i = 0; i < 8192; ++i) data[i] = (unsigned char)(i ^ (i >> 5));
  const size_t offsets[] = {1, 2, 4, 8, 16, 32, 63, 65};
  for (int i = 0; i < 8; ++i) {
    int released = 0;
    hh_iree_upload_t upload = upload_of(data + offsets[i], 1000, HH_IREE_UPLOAD_AUTO);
    upload.release = test_count_release;
    upload.release_user_data = &released;
    hh_iree_buffer_t* buffer = NULL;
    OK(hh_iree_buffer_upload(device, &upload, &buffer));
    CHECK_EQ(hh_iree_buffer_origin(buffer), HH_IREE_ORIGIN_COPIED);
    CHECK(hh_iree_buffer_host_address(buffer) != data + offsets[i]);
    CHECK_EQ(released, 1);
    unsigned char back[1000];
    OK(hh_iree_buffer_read(buffer, 0, back, sizeof(back)));
    CHECK(memcmp(back, data + offsets[i], sizeof(back)) == 0);
    hh_iree_buffer_free(buffer);
    CHECK_EQ(released, 1);
    upload.policy = HH_IREE_UPLOAD_REQUIRE_IMPORT;
    FAILS(hh_iree_buffer_upload(device, &upload, &buffer), HH_IREE_CODE_OUT_OF_RANGE, "64");
    CHECK(buffer == NULL);
    CHECK_EQ(released, 2);
  }
  // Aligned, but a copy is wanted.
  hh_iree_upload_t upload = upload_of(data, 1000, HH_IREE_UPLOAD_COPY);
  hh_iree_buffer_t* buffer = NULL;
  OK(hh_iree_buffer_upload(device, &upload, &buffer));
  CHECK_EQ(hh_iree_buffer_origin(buffer), HH_IREE_ORIGIN_COPIED);
  hh_iree_buffer_free(buffer);
  free(data);
}

static void test_writing(hh_iree_device_t* device) {
  unsigned char* data = aligned_alloc(64, 1024);
  memset(data, 7, 1024);
  hh_iree_upload_t upload = upload_of(data, 1024, HH_IREE_UPLOAD_REQUIRE_IMPORT);
  hh_iree_buffer_t* buffer = NULL;
  OK(hh_iree_buffer_upload(device, &upload, &buffer));
  const unsigned char two[] = {1, 2};
  FAILS(hh_iree_buffer_write(buffer, 0, two, 2), HH_IREE_CODE_PERMISSION_DENIED, "writable");
  FAILS(hh_iree_buffer_zero(buffer), HH_IREE_CODE_PERMISSION_DENIED, "writable");
  hh_iree_buffer_free(buffer);
  upload.writable = true;
  OK(hh_iree_buffer_upload(device, &upload, &buffer));
  OK(hh_iree_buffer_write(buffer, 100, two, 2));
  CHECK(data[99] == 7 && data[100] == 1 && data[101] == 2 && data[102] == 7);
  OK(hh_iree_buffer_zero(buffer));
  for (int i = 0; i < 1024; ++i) CHECK_EQ(data[i], 0);
  hh_iree_buffer_free(buffer);
  free(data);
}

static void test_ranges(hh_iree_device_t* device) {
  unsigned char data[100], back[100];
  for (int i = 0; i < 100; ++i) data[i] = (unsigned char)i;
  const int64_t dims[] = {100};
  hh_iree_buffer_t* buffer = test_upload(device, HH_IREE_DTYPE_U8, 1, dims, data, 100);
  OK(hh_iree_buffer_read(buffer, 37, back, 21));
  CHECK(memcmp(back, data + 37, 21) == 0);
  OK(hh_iree_buffer_read(buffer, 100, back, 0));
  OK(hh_iree_buffer_read(buffer, 0, NULL, 0));
  FAILS(hh_iree_buffer_read(buffer, 0, back, 101), HH_IREE_CODE_OUT_OF_RANGE, "101 bytes at 0");
  FAILS(hh_iree_buffer_read(buffer, 90, back, 11), HH_IREE_CODE_OUT_OF_RANGE, "of 100");
  FAILS(hh_iree_buffer_read(buffer, 101, back, 0), HH_IREE_CODE_OUT_OF_RANGE, "of 100");
  FAILS(hh_iree_buffer_read(buffer, UINT64_MAX, back, 2), HH_IREE_CODE_OUT_OF_RANGE, "of 100");
  FAILS(hh_iree_buffer_write(buffer, 2, back, SIZE_MAX), HH_IREE_CODE_OUT_OF_RANGE, "of 100");
  FAILS(hh_iree_buffer_read(buffer, 0, NULL, 1), HH_IREE_CODE_INVALID_ARGUMENT, "NULL");
  FAILS(hh_iree_buffer_read(NULL, 0, back, 1), HH_IREE_CODE_INVALID_ARGUMENT, "NULL");
  hh_iree_buffer_free(buffer);
}

static void test_allocate(hh_iree_device_t* device) {
  const int64_t dims[] = {3, 1001};
  hh_iree_buffer_t *one = NULL, *two = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F16, 2, dims, &one));
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F16, 2, dims, &two));
  CHECK_EQ(hh_iree_buffer_origin(one), HH_IREE_ORIGIN_ALLOCATED);
  CHECK(hh_iree_buffer_host_address(one) != hh_iree_buffer_host_address(two));
  unsigned char back[6006];
  OK(hh_iree_buffer_read(one, 0, back, sizeof(back)));
  for (size_t i = 0; i < sizeof(back); ++i) CHECK_EQ(back[i], 0);
  hh_iree_buffer_free(one);
  hh_iree_buffer_free(two);
  // Nothing at all is a buffer, too.
  const int64_t none[] = {0, 5};
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, none, &one));
  CHECK_EQ(hh_iree_buffer_byte_length(one), 0);
  OK(hh_iree_buffer_zero(one));
  hh_iree_buffer_free(one);
  hh_iree_upload_t upload = upload_of(NULL, 0, HH_IREE_UPLOAD_AUTO);
  OK(hh_iree_buffer_upload(device, &upload, &one));
  hh_iree_buffer_free(one);
}

static void test_refusals(hh_iree_device_t* device) {
  unsigned char data[64] = {0};
  int released = 0;
  hh_iree_buffer_t* buffer = NULL;
  hh_iree_upload_t good = upload_of(data, 64, HH_IREE_UPLOAD_AUTO);
  good.release = test_count_release;
  good.release_user_data = &released;

  hh_iree_upload_t bad = good;
  bad.length = 63;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "63 bytes");
  bad = good;
  bad.data = NULL;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "NULL");
  bad = good;
  bad.dtype = 99;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "dtype");
  bad.dtype = HH_IREE_DTYPE_NONE;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "dtype");
  bad = good;
  bad.policy = 9;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "policy");
  bad = good;
  bad.rank = 9;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "rank 9");
  bad = good;
  bad.dims[0] = -64;
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "-64");
  bad = good;
  bad.rank = 3;
  bad.dims[0] = bad.dims[1] = bad.dims[2] = (int64_t)1 << 32;  // 2^96 elements
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_OUT_OF_RANGE, "overflows");
  bad.rank = 2;
  bad.dims[0] = (int64_t)1 << 62, bad.dims[1] = 4;  // 2^64: wraps to 0
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_OUT_OF_RANGE, "overflows");
  bad.rank = 1;
  bad.dtype = HH_IREE_DTYPE_I64;  // 2^62 elements of 8 bytes
  FAILS(hh_iree_buffer_upload(device, &bad, &buffer), HH_IREE_CODE_OUT_OF_RANGE, "overflows");
  CHECK_EQ(released, 10);  // once for each, though each failed
  FAILS(hh_iree_buffer_upload(NULL, &good, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "device");
  FAILS(hh_iree_buffer_upload(device, &good, NULL), HH_IREE_CODE_INVALID_ARGUMENT, "out_buffer");
  CHECK_EQ(released, 12);
  FAILS(hh_iree_buffer_upload(device, NULL, &buffer), HH_IREE_CODE_INVALID_ARGUMENT, "upload");

  const int64_t huge[] = {(int64_t)1 << 45};  // a size that is valid, and that nobody has
  FAILS(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 1, huge, &buffer),
        HH_IREE_CODE_RESOURCE_EXHAUSTED, "");
  FAILS(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 1, NULL, &buffer),
        HH_IREE_CODE_INVALID_ARGUMENT, "dims");
  FAILS(hh_iree_buffer_allocate(NULL, HH_IREE_DTYPE_F32, 0, NULL, &buffer),
        HH_IREE_CODE_INVALID_ARGUMENT, "device");
  const int64_t dims[] = {8};
  hh_iree_buffer_t* alias = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 1, dims, &buffer));
  FAILS(hh_iree_buffer_alias(buffer, HH_IREE_DTYPE_F16, 1, dims, &alias),
        HH_IREE_CODE_INVALID_ARGUMENT, "16 bytes");
  hh_iree_buffer_free(buffer);
}

// Buffers are made, used and freed from several threads over one device.
static void* thread_of_buffers(void* device) {
  for (int i = 0; i < 200; ++i) test_ranges(device);
  return NULL;
}

static void test_threads(hh_iree_device_t* device) {
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) {
    CHECK_EQ(pthread_create(&threads[i], NULL, thread_of_buffers, device), 0);
  }
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
}

int main(void) {
  hh_iree_runtime_t* runtime = test_runtime();
  const char* drivers[] = {"local-sync", "local-task"};
  for (int i = 0; i < 2; ++i) {
    hh_iree_device_t* device = test_device(runtime, drivers[i], 1);
    test_round_trips(device);
    test_import(device);
    test_unaligned_goes_by_copy(device);
    test_writing(device);
    test_ranges(device);
    test_allocate(device);
    test_refusals(device);
    test_threads(device);
    hh_iree_device_free(device);
  }
  hh_iree_runtime_free(runtime);
  puts("buffers: ok");
  return 0;
}
