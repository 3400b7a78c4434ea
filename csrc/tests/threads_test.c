// Threads: sessions side by side on one runtime and one device, as the header allows them. Of most use
// under ThreadSanitizer.

#include <pthread.h>

#include "test.h"

enum { THREADS = 4, ROUNDS = 12, STEPS = 16 };

typedef struct {
  hh_iree_runtime_t* runtime;
  hh_iree_device_t* device;    // of all threads
  hh_iree_buffer_t* weights;   // f32 [16, 32], of all threads
  int number;
} worker_t;

// A session: a program of its own, caches that grow, and weights that all read.
static void session(const worker_t* worker, hh_iree_device_t* device, hh_iree_buffer_t* weights) {
  hh_iree_program_t* kv = test_program(device, "kv");
  hh_iree_program_t* matvec = test_program(device, "matvec");
  const int64_t dims[] = {64, 8}, row_dims[] = {1, 8}, x_dims[] = {32, 1};
  hh_iree_buffer_t *k = NULL, *v = NULL;
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &k));
  OK(hh_iree_buffer_allocate(device, HH_IREE_DTYPE_F32, 2, dims, &v));
  hh_iree_call_t *step = NULL, *apply = NULL;
  OK(hh_iree_call_create(kv, "kv.step", &step));
  OK(hh_iree_call_create(matvec, "matvec.apply", &apply));
  OK(hh_iree_call_set_buffer(step, 0, k));
  OK(hh_iree_call_set_buffer(step, 1, v));
  OK(hh_iree_call_set_buffer(apply, 0, weights));
  double sum = 0;
  for (int64_t i = 0; i < STEPS; ++i) {
    const float value = (float)(worker->number + 1 + i);
    float row[8], x[32];
    for (int j = 0; j < 8; ++j) row[j] = value;
    for (int j = 0; j < 32; ++j) x[j] = value;
    hh_iree_buffer_t* uploaded = test_upload(device, HH_IREE_DTYPE_F32, 2, row_dims, row, sizeof(row));
    OK(hh_iree_call_set_buffer(step, 2, uploaded));
    hh_iree_buffer_free(uploaded);
    OK(hh_iree_call_set_i64(step, 3, i));
    OK(hh_iree_call_invoke(step));
    sum += 3.0 * 8 * value;
    const float expected = (float)sum;
    test_expect_f32(step, 0, &expected, 1);

    uploaded = test_upload(device, HH_IREE_DTYPE_F32, 2, x_dims, x, sizeof(x));
    OK(hh_iree_call_set_buffer(apply, 1, uploaded));
    hh_iree_buffer_free(uploaded);
    OK(hh_iree_call_invoke(apply));
    float y[16];
    for (int j = 0; j < 16; ++j) y[j] = 32 * value * (float)j;
    test_expect_f32(apply, 0, y, 16);
  }
  hh_iree_call_free(step);
  hh_iree_call_free(apply);
  hh_iree_buffer_free(k);
  hh_iree_buffer_free(v);
  hh_iree_program_free(kv);
  hh_iree_program_free(matvec);
}

// Row j of the weights is all j.
static hh_iree_buffer_t* upload_weights(hh_iree_device_t* device) {
  const int64_t dims[] = {16, 32};
  float w[16 * 32];
  for (int i = 0; i < 16 * 32; ++i) w[i] = (float)(i / 32);
  return test_upload(device, HH_IREE_DTYPE_F32, 2, dims, w, sizeof(w));
}

static void* work(void* argument) {
  const worker_t* worker = argument;
  for (int round = 0; round < ROUNDS; ++round) {
    session(worker, worker->device, worker->weights);
    if (round % 4 != worker->number % 4) continue;
    // Devices come and go beside it, and runtimes.
    hh_iree_runtime_t* other = round % 3 ? NULL : test_runtime();
    hh_iree_device_t* own = test_device(other ? other : worker->runtime,
                                        round % 2 ? "local-sync" : "local-task", round % 2 ? 0 : 1);
    hh_iree_buffer_t* weights = upload_weights(own);
    session(worker, own, weights);
    hh_iree_buffer_free(weights);
    hh_iree_device_free(own);
    hh_iree_runtime_free(other);
  }
  return NULL;
}

int main(void) {
  hh_iree_runtime_t* runtime = test_runtime();
  for (uint32_t workers = 1; workers <= 2; ++workers) {
    hh_iree_device_t* device = test_device(runtime, "local-task", workers);
    hh_iree_buffer_t* weights = upload_weights(device);
    pthread_t threads[THREADS];
    worker_t each[THREADS];
    for (int i = 0; i < THREADS; ++i) {
      each[i] = (worker_t){runtime, device, weights, i};
      CHECK(pthread_create(&threads[i], NULL, work, &each[i]) == 0);
    }
    for (int i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    hh_iree_buffer_free(weights);
    hh_iree_device_free(device);
  }
  hh_iree_runtime_free(runtime);
  puts("threads: ok");
  return 0;
}
