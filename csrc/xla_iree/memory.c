// Host memory: copies, and whom to tell when memory that was lent to IREE is free again.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

char* hh_string(const char* data, size_t length) {
  char* copy = malloc(length + 1);
  if (!copy) return NULL;
  if (length) memcpy(copy, data, length);
  copy[length] = '\0';
  return copy;
}

bool hh_is_aligned(const void* pointer, size_t alignment) {
  return ((uintptr_t)pointer & (alignment - 1)) == 0;
}

// A copy of `data` at a multiple of `alignment`; NULL for lack of memory. Freed with free().
static void* hh_aligned_copy(const void* data, size_t length, size_t alignment) {
  if (length > SIZE_MAX - alignment) return NULL;
  const size_t rounded = length == 0 ? alignment : (length + alignment - 1) & ~(alignment - 1);
  void* copy = aligned_alloc(alignment, rounded);
  if (copy && length) memcpy(copy, data, length);
  return copy;
}

void hh_release_now(hh_iree_release_fn_t release, void* user_data) {
  if (release) release(user_data);
}

struct hh_keeper_t {
  hh_iree_release_fn_t release;
  void* user_data;
  void* owned;   // freed besides, may be NULL
  bool handing;  // the call that hands over is running, on this thread
  bool fired;
};

static hh_keeper_t* hh_keeper_new(hh_iree_release_fn_t release, void* user_data, void* owned) {
  hh_keeper_t* keeper = malloc(sizeof(*keeper));
  if (keeper) *keeper = (hh_keeper_t){release, user_data, owned, true, false};
  return keeper;
}

hh_keeper_t* hh_keeper_create(void) { return hh_keeper_new(NULL, NULL, NULL); }

void hh_keeper_tell(hh_keeper_t* keeper, hh_iree_release_fn_t release, void* user_data) {
  keeper->release = release;
  keeper->user_data = user_data;
}

static void hh_keeper_run(hh_keeper_t* keeper) {
  free(keeper->owned);
  if (keeper->release) keeper->release(keeper->user_data);
}

void hh_keeper_fire(hh_keeper_t* keeper) {
  if (keeper->handing) {
    keeper->fired = true;
    return;
  }
  hh_keeper_run(keeper);
  free(keeper);
}

void hh_keeper_settle(hh_keeper_t* keeper, bool handed_over) {
  keeper->handing = false;
  if (!handed_over || keeper->fired) hh_keeper_fire(keeper);
}

hh_keeper_t* hh_keep_aligned(const void** data, size_t length, size_t alignment,
                             hh_iree_release_fn_t release, void* user_data) {
  hh_keeper_t* keeper = NULL;
  if (release && hh_is_aligned(*data, alignment)) {
    keeper = hh_keeper_new(release, user_data, NULL);
    if (!keeper) hh_release_now(release, user_data);
    return keeper;
  }
  void* copy = hh_aligned_copy(*data, length, alignment);
  hh_release_now(release, user_data);
  if (!copy) return NULL;
  keeper = hh_keeper_new(NULL, NULL, copy);
  if (!keeper) {
    free(copy);
    return NULL;
  }
  *data = copy;
  return keeper;
}
