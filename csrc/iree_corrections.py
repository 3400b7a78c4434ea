"""What is wrong in the pinned source of IREE, and what is built in its place (docs/hardening.md)."""

# A type's registration, as vm/instance.c writes it.
REGISTRATION = "(iree_vm_ref_type_t)descriptor |\n{}(iree_vm_ref_type_t)descriptor->offsetof_counter;\n"

# Small corrections to the source: (file, text that must occur exactly once, what it becomes).
PATCHES = (
    # A machine with NVIDIA's driver but without its development files has only the versioned name.
    (
        "runtime/src/iree/hal/drivers/cuda/cuda_dynamic_symbols.c",
        '    "libcuda.so",\n',
        '    "libcuda.so.1",\n    "libcuda.so",\n',
    ),
    # Types are registered in globals, anew with every instance, and the drivers of local devices make one
    # each. Where sessions run beside that, a global must not be zero for a moment, nor be written again.
    (
        "runtime/src/iree/vm/instance.c",
        "  *out_registration = 0;\n",
        "  const iree_vm_ref_type_t registration = (iree_vm_ref_type_t)descriptor |\n"
        "                                          (iree_vm_ref_type_t)descriptor->offsetof_counter;\n",
    ),
    (
        "runtime/src/iree/vm/instance.c",
        "(&instance->type_mutex);\n      *out_registration = " + REGISTRATION.format(" " * 26),
        "(&instance->type_mutex);\n      if (*out_registration != registration) *out_registration = registration;\n",
    ),
    (
        "runtime/src/iree/vm/instance.c",
        "(&instance->type_mutex);\n\n  *out_registration = " + REGISTRATION.format(" " * 22),
        "(&instance->type_mutex);\n\n  if (*out_registration != registration) *out_registration = registration;\n",
    ),
    # The same of what the processor can do, which every program that is loaded asks for anew: one that is
    # loaded beside it would see a processor that can do nothing.
    (
        "runtime/src/iree/base/internal/cpu.c",
        '#include "iree/schemas/cpu_data.h"\n',
        '#include "iree/base/threading/call_once.h"\n#include "iree/schemas/cpu_data.h"\n',
    ),
    (
        "runtime/src/iree/base/internal/cpu.c",
        "void iree_cpu_initialize(iree_allocator_t temp_allocator) {\n",
        "static iree_once_flag iree_cpu_once_ = IREE_ONCE_FLAG_INIT;\n"
        "static void iree_cpu_initialize_once(void) {\n"
        "  iree_cpu_initialize_from_platform(iree_allocator_system(), iree_cpu_data_cache_);\n}\n\n"
        "void iree_cpu_initialize(iree_allocator_t temp_allocator) {\n",
    ),
    (
        "runtime/src/iree/base/internal/cpu.c",
        "  memset(iree_cpu_data_cache_, 0, sizeof(iree_cpu_data_cache_));\n"
        "  iree_cpu_initialize_from_platform(temp_allocator, iree_cpu_data_cache_);\n",
        "  iree_call_once(&iree_cpu_once_, iree_cpu_initialize_once);\n",
    ),
)
