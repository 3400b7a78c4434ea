// Programs: modules loaded on a device, and their functions by name.

#include <stdatomic.h>
#include <stdlib.h>

#include "iree/modules/hal/module.h"
#include "iree/vm/bytecode/module.h"

#include "internal.h"

struct hh_iree_program_t {
  atomic_size_t references;
  hh_iree_device_t* device;
  iree_vm_context_t* context;
};

hh_iree_device_t* hh_program_device(const hh_iree_program_t* program) { return program->device; }

iree_vm_context_t* hh_program_context(const hh_iree_program_t* program) {
  return program->context;
}

hh_iree_program_t* hh_program_retain(hh_iree_program_t* program) {
  atomic_fetch_add_explicit(&program->references, 1, memory_order_relaxed);
  return program;
}

void hh_iree_program_free(hh_iree_program_t* program) {
  if (!program) return;
  if (atomic_fetch_sub_explicit(&program->references, 1, memory_order_acq_rel) != 1) return;
  iree_vm_context_release(program->context);
  hh_iree_device_free(program->device);
  free(program);
}

// hal.buffer_view.trace ends in the log, never on stderr.
static iree_status_t hh_trace(void* user_data, iree_string_view_t key, iree_host_size_t count,
                              iree_hal_buffer_view_t** views, iree_allocator_t allocator) {
  const hh_iree_runtime_t* runtime = user_data;
  if (!hh_runtime_logs(runtime)) return iree_ok_status();
  iree_status_t status = iree_ok_status();
  for (iree_host_size_t i = 0; iree_status_is_ok(status) && i < count; ++i) {
    iree_string_builder_t builder;
    iree_string_builder_initialize(allocator, &builder);
    status = iree_hal_buffer_view_append_to_builder(views[i], 32, &builder);
    if (iree_status_is_ok(status)) {
      const iree_string_view_t text = iree_string_builder_view(&builder);
      hh_log(runtime, HH_IREE_LOG_DEBUG, "%.*s [%zu]: %.*s", (int)key.size, key.data, (size_t)i,
             (int)(text.size > 400 ? 400 : text.size), text.data);
    }
    iree_string_builder_deinitialize(&builder);
  }
  return status;
}

static iree_status_t hh_register(hh_iree_program_t* program, iree_vm_module_t* module) {
  return iree_vm_context_register_modules(program->context, 1, &module);
}

static iree_status_t hh_add_hal_module(hh_iree_program_t* program) {
  hh_iree_runtime_t* runtime = hh_device_runtime(program->device);
  iree_vm_module_t* module = NULL;
  const iree_hal_module_debug_sink_t sink = {.buffer_view_trace = {hh_trace, runtime}};
  iree_status_t status = iree_hal_module_create(
      hh_runtime_instance(runtime), iree_hal_module_device_policy_default(),
      hh_device_group(program->device), IREE_HAL_MODULE_FLAG_NONE, sink, hh_allocator(), &module);
  if (iree_status_is_ok(status)) status = hh_register(program, module);
  iree_vm_module_release(module);
  return status;
}

// Consumes the callback of every parameter, whatever happens.
static iree_status_t hh_add_parameter_module(hh_iree_program_t* program,
                                             const hh_iree_parameter_t* parameters, size_t count) {
  iree_vm_module_t* module = NULL;
  iree_status_t status = hh_parameter_module_create(program->device, parameters, count, &module);
  if (iree_status_is_ok(status)) status = hh_register(program, module);
  iree_vm_module_release(module);
  return status;
}

// An IREE allocator that can only free: it fires the keeper of a module's memory.
static iree_status_t hh_module_memory_ctl(void* self, iree_allocator_command_t command,
                                          const void* params, void** inout_pointer) {
  (void)params;
  if (command != IREE_ALLOCATOR_COMMAND_FREE) {
    return iree_make_status(IREE_STATUS_FAILED_PRECONDITION, "a module's memory cannot grow");
  }
  *inout_pointer = NULL;
  hh_keeper_fire(self);
  return iree_ok_status();
}

// Consumes the module's callback, whatever happens.
static iree_status_t hh_add_bytecode_module(hh_iree_program_t* program,
                                            const hh_iree_module_t* given) {
  const void* data = given->data;
  hh_keeper_t* keeper = hh_keep_aligned(&data, given->length, HH_LOCAL_ALIGNMENT, given->release,
                                        given->release_user_data);
  if (!keeper) return iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  const iree_allocator_t memory = {.self = keeper, .ctl = hh_module_memory_ctl};
  iree_vm_module_t* module = NULL;
  iree_status_t status = iree_vm_bytecode_module_create(
      hh_runtime_instance(hh_device_runtime(program->device)), IREE_VM_BYTECODE_MODULE_FLAG_NONE,
      iree_make_const_byte_span(data, given->length), memory, hh_allocator(), &module);
  hh_keeper_settle(keeper, iree_status_is_ok(status));
  if (iree_status_is_ok(status)) status = hh_register(program, module);
  iree_vm_module_release(module);
  return status;
}

static hh_iree_error_t* hh_check_program(const hh_iree_module_t* modules, size_t module_count,
                                         const hh_iree_parameter_t* parameters,
                                         size_t parameter_count) {
  if (module_count == 0) return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "no module was given");
  for (size_t i = 0; i < module_count; ++i) {
    if (!modules[i].data || modules[i].length == 0) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "module %zu is empty", i);
    }
  }
  for (size_t i = 0; i < parameter_count; ++i) {
    if (!parameters[i].scope || !parameters[i].key || (parameters[i].length && !parameters[i].data)) {
      return hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "parameter %zu lacks its scope, key or data",
                      i);
    }
  }
  return NULL;
}

hh_iree_error_t* hh_iree_program_create(hh_iree_device_t* device,
                                        const hh_iree_program_options_t* options,
                                        hh_iree_program_t** out_program) {
  HH_NULL_CHECK(out_program);
  *out_program = NULL;
  hh_iree_program_options_t given;
  hh_iree_error_t* error = hh_read_struct("program options", options, &given, sizeof(given));
  if (error) return error;
  hh_iree_module_t* modules = NULL;
  hh_iree_parameter_t* parameters = NULL;
  error = hh_read_array("modules", given.modules, given.module_count, sizeof(*modules),
                        (void**)&modules);
  if (error) return error;
  error = hh_read_array("parameters", given.parameters, given.parameter_count, sizeof(*parameters),
                        (void**)&parameters);
  const size_t parameter_count = error ? 0 : given.parameter_count;
  // From here on callbacks are known, and each is consumed exactly once. `used` counts modules.
  size_t used = 0;
  bool parameters_used = false;
  if (!error && !device) {
    error = hh_error(HH_IREE_CODE_INVALID_ARGUMENT, "%s: device is NULL", __func__);
  }
  if (!error) error = hh_check_program(modules, given.module_count, parameters, parameter_count);
  hh_iree_program_t* program = NULL;
  if (!error) {
    program = calloc(1, sizeof(*program));
    if (!program) error = hh_error_out_of_memory();
  }
  if (!error) {
    atomic_init(&program->references, 1);
    program->device = hh_device_retain(device);
    iree_status_t status = iree_vm_context_create(hh_runtime_instance(hh_device_runtime(device)),
                                                  IREE_VM_CONTEXT_FLAG_NONE, hh_allocator(),
                                                  &program->context);
    if (iree_status_is_ok(status)) status = hh_add_hal_module(program);
    if (iree_status_is_ok(status)) {
      parameters_used = true;
      status = hh_add_parameter_module(program, parameters, parameter_count);
    }
    while (iree_status_is_ok(status) && used < given.module_count) {
      status = hh_add_bytecode_module(program, &modules[used++]);
    }
    error = hh_error_from_status(status);
  }
  for (size_t i = used; modules && i < given.module_count; ++i) {
    hh_release_now(modules[i].release, modules[i].release_user_data);
  }
  for (size_t i = 0; !parameters_used && i < parameter_count; ++i) {
    hh_release_now(parameters[i].release, parameters[i].release_user_data);
  }
  free(modules);
  free(parameters);
  if (error) {
    hh_iree_program_free(program);
    return error;
  }
  *out_program = program;
  return NULL;
}

hh_iree_error_t* hh_program_resolve(const hh_iree_program_t* program, const char* name,
                                    iree_vm_function_t* out_function) {
  iree_status_t status = iree_vm_context_resolve_function(
      program->context, iree_make_cstring_view(name), out_function);
  if (!iree_status_is_ok(status)) {
    status = iree_status_annotate_f(status, "looking up function '%s'", name);
  }
  return hh_error_from_status(status);
}

hh_iree_error_t* hh_iree_program_has_function(const hh_iree_program_t* program, const char* name) {
  HH_NULL_CHECK(program);
  HH_NULL_CHECK(name);
  iree_vm_function_t function;
  return hh_program_resolve(program, name, &function);
}
