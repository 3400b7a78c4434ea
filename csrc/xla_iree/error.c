// Errors: a code of IREE's and a text.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct hh_iree_error_t {
  int32_t code;
  char* message;
};

// What is returned when there is no memory for an error.
static char hh_out_of_memory_text[] = "RESOURCE_EXHAUSTED; out of host memory";
static hh_iree_error_t hh_out_of_memory = {HH_IREE_CODE_RESOURCE_EXHAUSTED, hh_out_of_memory_text};

int32_t hh_iree_error_code(const hh_iree_error_t* error) { return error->code; }

const char* hh_iree_error_message(const hh_iree_error_t* error) { return error->message; }

void hh_iree_error_free(hh_iree_error_t* error) {
  if (!error || error == &hh_out_of_memory) return;
  free(error->message);
  free(error);
}

hh_iree_error_t* hh_error_out_of_memory(void) { return &hh_out_of_memory; }

// Takes ownership of `message`, which may be NULL for lack of memory.
static hh_iree_error_t* hh_error_take(int32_t code, char* message) {
  hh_iree_error_t* error = message ? malloc(sizeof(*error)) : NULL;
  if (!error) {
    free(message);
    return &hh_out_of_memory;
  }
  error->code = code;
  error->message = message;
  return error;
}

hh_iree_error_t* hh_error(int32_t code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char* message = length < 0 ? NULL : malloc((size_t)length + 1);
  if (message) vsnprintf(message, (size_t)length + 1, format, again);
  va_end(again);
  return hh_error_take(code, message);
}

hh_iree_error_t* hh_error_from_status(iree_status_t status) {
  if (iree_status_is_ok(status)) return NULL;
  const int32_t code = (int32_t)iree_status_code(status);
  iree_host_size_t length = 0;
  char* message = NULL;
  if (iree_status_format(status, 0, NULL, &length)) {
    message = malloc(length + 1);
    if (message && !iree_status_format(status, length + 1, message, &length)) message[0] = '\0';
  }
  iree_status_free(status);
  return hh_error_take(code, message);
}
