// Calls of one function: arguments, invocation, results.

#include <stdlib.h>
#include <string.h>

#include "iree/modules/hal/types.h"

#include "internal.h"

struct hh_iree_call_t {
  hh_iree_program_t* program;
  iree_vm_function_t function;
  size_t argument_count;
  size_t result_count;
  uint8_t* kinds;  // of the arguments, then of the results
  bool* is_set;    // by argument
  iree_vm_list_t* inputs;
  iree_vm_list_t* outputs;
};

void hh_iree_call_free(hh_iree_call_t* call) {
  if (!call) return;
  iree_vm_list_release(call->inputs);
  iree_vm_list_release(call->outputs);
  free(call->kinds);
  free(call->is_set);
  hh_iree_program_free(call->program);
  free(call);
}

static hh_iree_error_t* hh_parse_kinds(iree_string_view_t text, uint8_t* out_kinds) {
  for (iree_host_size_t i = 0; i < text.size; ++i) {
    switch (text.data[i]) {
      case IREE_VM_CCONV_TYPE_REF:
        out_kinds[i] = HH_IREE_KIND_BUFFER;
        break;
      case IREE_VM_CCONV_TYPE_I32:
        out_kinds[i] = HH_IREE_KIND_I32;
        break;
      case IREE_VM_CCONV_TYPE_I64:
        out_kinds[i] = HH_IREE_KIND_I64;
        break;
      case IREE_VM_CCONV_TYPE_F32:
        out_kinds[i] = HH_IREE_KIND_F32;
        break;
      case IREE_VM_CCONV_TYPE_F64:
        out_kinds[i] = HH_IREE_KIND_F64;
        break;
      default:
        return hh_error(HH_IREE_CODE_UNIMPLEMENTED, "the function's type '%.*s' has '%c' in it",
                        (int)text.size, text.data, text.data[i]);
    }
  }
  return NULL;
}

static hh_iree_error_t* hh_call_prepare(hh_iree_call_t* call, const char* name) {
  hh_iree_error_t* error = hh_program_resolve(call->program, name, &call->function);
  if (error) return error;
  iree_string_view_t arguments, results;
  const iree_vm_function_signature_t signature = iree_vm_function_signature(&call->function);
  error = hh_error_from_status(
      iree_vm_function_call_get_cconv_fragments(&signature, &arguments, &results));
  if (error) return error;
  call->argument_count = arguments.size;
  call->result_count = results.size;
  call->kinds = calloc(arguments.size + results.size + 1, sizeof(*call->kinds));
  call->is_set = calloc(arguments.size + 1, sizeof(*call->is_set));
  if (!call->kinds || !call->is_set) return hh_error_out_of_memory();
  error = hh_parse_kinds(arguments, call->kinds);
  if (!error) error = hh_parse_kinds(results, call->kinds + arguments.size);
  if (error) return error;
  const iree_vm_type_def_t any = iree_vm_make_undefined_type_def();
  iree_status_t status =
      iree_vm_list_create(any, call->argument_count, hh_allocator(), &call->inputs);
  if (iree_status_is_ok(status)) status = iree_vm_list_resize(call->inputs, call->argument_count);
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_create(any, call->result_count, hh_allocator(), &call->outputs);
  }
  return hh_error_from_status(status);
}

hh_iree_error_t* hh_iree_call_create(hh_iree_program_t* program, const char* name,
                                     hh_iree_call_t** out_call) {
  HH_NULL_CHECK(out_call);
  *out_call = NULL;
  HH_NULL_CHECK(program);
  HH_NULL_CHECK(name);
  hh_iree_call_t* call = calloc(1, sizeof(*call));
  if (!call) return hh_error_out_of_memory();
  call->program = hh_program_retain(program);
  hh_iree_error_t* error = hh_call_prepare(call, name);
  if (error) {
    hh_iree_call_free(call);
    return error;
  }
  *out_call = call;
  return NULL;
}

size_t hh_iree_call_argument_count(const hh_iree_call_t* call) { return call->argument_count; }

int32_t hh_iree_call_argument_kind(const hh_iree_call_t* call, size_t index) {
  return index < call->argument_count ? call->kinds[index] : HH_IREE_KIND_NONE;
}

size_t hh_iree_call_result_count(const hh_iree_call_t* call) { return call->result_count; }

int32_t hh_iree_call_result_kind(const hh_iree_call_t* call, size_t index) {
  return index < call->result_count ? call->kinds[call->argument_count + index] : HH_IREE_KIND_NONE;
}

static const char* hh_kind_name(int32_t kind) {
  static const char* names[] = {"nothing", "a buffer", "an i32", "an i64", "an f32", "an f64"};
  return names[kind];
}

static hh_iree_error_t* hh_check_argument(const hh_iree_call_t* call, size_t index, int32_t kind) {
  HH_NULL_CHECK(call);
  if (index >= call->argument_count) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "argument %zu of a function with %zu", index,
                    call->argument_count);
  }
  if (call->kinds[index] != kind) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "argument %zu is %s, not %s", index,
                    hh_kind_name(call->kinds[index]), hh_kind_name(kind));
  }
  return NULL;
}

hh_iree_error_t* hh_iree_call_set_buffer(hh_iree_call_t* call, size_t index,
                                         hh_iree_buffer_t* buffer) {
  hh_iree_error_t* error = hh_check_argument(call, index, HH_IREE_KIND_BUFFER);
  if (error) return error;
  HH_NULL_CHECK(buffer);
  const hh_iree_device_t* device = hh_buffer_device(buffer);
  if (hh_device_hal(device) != hh_device_hal(hh_program_device(call->program))) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT,
                    "argument %zu is a buffer of another device (%s:%zu)", index,
                    hh_device_driver(device), hh_device_ordinal(device));
  }
  iree_vm_ref_t reference = iree_hal_buffer_view_retain_ref(hh_buffer_view(buffer));
  iree_status_t status = iree_vm_list_set_ref_move(call->inputs, index, &reference);
  iree_vm_ref_release(&reference);
  if (iree_status_is_ok(status)) call->is_set[index] = true;
  return hh_error_from_status(status);
}

static hh_iree_error_t* hh_set_value(hh_iree_call_t* call, size_t index, int32_t kind,
                                     iree_vm_value_t value) {
  hh_iree_error_t* error = hh_check_argument(call, index, kind);
  if (error) return error;
  iree_status_t status = iree_vm_list_set_value(call->inputs, index, &value);
  if (iree_status_is_ok(status)) call->is_set[index] = true;
  return hh_error_from_status(status);
}

hh_iree_error_t* hh_iree_call_set_i32(hh_iree_call_t* call, size_t index, int32_t value) {
  return hh_set_value(call, index, HH_IREE_KIND_I32, iree_vm_value_make_i32(value));
}

hh_iree_error_t* hh_iree_call_set_i64(hh_iree_call_t* call, size_t index, int64_t value) {
  return hh_set_value(call, index, HH_IREE_KIND_I64, iree_vm_value_make_i64(value));
}

hh_iree_error_t* hh_iree_call_set_f32(hh_iree_call_t* call, size_t index, float value) {
  return hh_set_value(call, index, HH_IREE_KIND_F32, iree_vm_value_make_f32(value));
}

void hh_iree_call_clear(hh_iree_call_t* call) {
  if (!call) return;
  iree_vm_list_clear(call->outputs);
  iree_vm_list_clear(call->inputs);
  // Cannot fail: the capacity is there since the call was created.
  iree_status_free(iree_vm_list_resize(call->inputs, call->argument_count));
  memset(call->is_set, 0, call->argument_count * sizeof(*call->is_set));
}

void hh_iree_call_drop_results(hh_iree_call_t* call) {
  if (call) iree_vm_list_clear(call->outputs);
}

hh_iree_error_t* hh_iree_call_invoke(hh_iree_call_t* call) {
  HH_NULL_CHECK(call);
  iree_vm_list_clear(call->outputs);
  for (size_t i = 0; i < call->argument_count; ++i) {
    if (!call->is_set[i]) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "argument %zu of %zu (%s) is not set", i,
                      call->argument_count, hh_kind_name(call->kinds[i]));
    }
  }
  iree_status_t status =
      iree_vm_invoke(hh_program_context(call->program), call->function,
                     IREE_VM_INVOCATION_FLAG_NONE, /*policy=*/NULL, call->inputs, call->outputs,
                     hh_allocator());
  if (!iree_status_is_ok(status)) iree_vm_list_clear(call->outputs);
  return hh_error_from_status(status);
}

static hh_iree_error_t* hh_check_result(const hh_iree_call_t* call, size_t index, int32_t kind) {
  if (index >= call->result_count) {
    return hh_error(HH_IREE_CODE_OUT_OF_RANGE, "result %zu of a function with %zu", index,
                    call->result_count);
  }
  if (hh_iree_call_result_kind(call, index) != kind) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "result %zu is %s, not %s", index,
                    hh_kind_name(hh_iree_call_result_kind(call, index)), hh_kind_name(kind));
  }
  if (index >= iree_vm_list_size(call->outputs)) {
    return hh_error(HH_IREE_CODE_FAILED_PRECONDITION, "there are no results: nothing was invoked");
  }
  return NULL;
}

hh_iree_error_t* hh_iree_call_result_buffer(hh_iree_call_t* call, size_t index,
                                            hh_iree_buffer_t** out_buffer) {
  HH_NULL_CHECK(out_buffer);
  *out_buffer = NULL;
  HH_NULL_CHECK(call);
  hh_iree_error_t* error = hh_check_result(call, index, HH_IREE_KIND_BUFFER);
  if (error) return error;
  iree_hal_buffer_view_t* view = iree_vm_list_get_buffer_view_assign(call->outputs, index);
  if (!view) {
    return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "result %zu is not a buffer view", index);
  }
  return hh_buffer_wrap(hh_program_device(call->program), view, HH_IREE_ORIGIN_RESULT, false,
                        out_buffer);
}

static hh_iree_error_t* hh_result_value(hh_iree_call_t* call, size_t index, int32_t kind,
                                        iree_vm_value_t* out_value) {
  HH_NULL_CHECK(call);
  hh_iree_error_t* error = hh_check_result(call, index, kind);
  if (error) return error;
  return hh_error_from_status(iree_vm_list_get_value(call->outputs, index, out_value));
}

hh_iree_error_t* hh_iree_call_result_i32(hh_iree_call_t* call, size_t index, int32_t* out_value) {
  HH_NULL_CHECK(out_value);
  iree_vm_value_t value = {0};
  hh_iree_error_t* error = hh_result_value(call, index, HH_IREE_KIND_I32, &value);
  *out_value = error ? 0 : value.i32;
  return error;
}

hh_iree_error_t* hh_iree_call_result_i64(hh_iree_call_t* call, size_t index, int64_t* out_value) {
  HH_NULL_CHECK(out_value);
  iree_vm_value_t value = {0};
  hh_iree_error_t* error = hh_result_value(call, index, HH_IREE_KIND_I64, &value);
  *out_value = error ? 0 : value.i64;
  return error;
}

hh_iree_error_t* hh_iree_call_result_f32(hh_iree_call_t* call, size_t index, float* out_value) {
  HH_NULL_CHECK(out_value);
  iree_vm_value_t value = {0};
  hh_iree_error_t* error = hh_result_value(call, index, HH_IREE_KIND_F32, &value);
  *out_value = error ? 0 : value.f32;
  return error;
}
