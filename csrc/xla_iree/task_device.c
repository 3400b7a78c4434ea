// local-task devices with exactly the workers that were asked for.

#include "iree/hal/drivers/local_task/task_device.h"
#include "iree/hal/local/loaders/registration/init.h"
#include "iree/task/api.h"

#include "internal.h"

iree_status_t hh_create_task_device(const hh_iree_device_options_t* options,
                                    const iree_hal_device_create_params_t* create_params,
                                    iree_hal_device_t** out_device) {
  iree_task_executor_options_t executor_options;
  iree_task_executor_options_initialize(&executor_options);
  executor_options.worker_spin_ns = (iree_duration_t)options->worker_spin_us * 1000;
  iree_task_topology_t topology;
  iree_status_t status = iree_ok_status();
  if (options->workers > 0) {
    iree_task_topology_initialize_from_group_count(options->workers, &topology);
  } else {
    status = iree_task_topology_initialize_from_physical_cores(
        IREE_TASK_TOPOLOGY_NODE_ID_ANY, IREE_TASK_TOPOLOGY_PERFORMANCE_LEVEL_ANY,
        IREE_TASK_TOPOLOGY_DISTRIBUTION_COMPACT, HH_MAX_WORKERS, &topology);
  }
  if (!iree_status_is_ok(status)) return status;
  iree_task_executor_t* executor = NULL;
  status = iree_task_executor_create(executor_options, &topology, hh_allocator(), &executor);
  iree_task_topology_deinitialize(&topology);

  iree_hal_executable_loader_t* loaders[8] = {NULL};
  iree_host_size_t loader_count = 0;
  if (iree_status_is_ok(status)) {
    status = iree_hal_create_all_available_executable_loaders(
        /*plugin_manager=*/NULL, IREE_ARRAYSIZE(loaders), &loader_count, loaders, hh_allocator());
  }
  iree_hal_allocator_t* allocator = NULL;
  if (iree_status_is_ok(status)) {
    status = iree_hal_allocator_create_heap(IREE_SV("local"), hh_allocator(), hh_allocator(),
                                            &allocator);
  }
  if (iree_status_is_ok(status)) {
    iree_hal_task_device_params_t params;
    iree_hal_task_device_params_initialize(&params);
    status = iree_hal_task_device_create(IREE_SV("local-task"), &params, 1, &executor, loader_count,
                                         loaders, allocator, create_params, hh_allocator(),
                                         out_device);
  }
  iree_hal_allocator_release(allocator);
  for (iree_host_size_t i = 0; i < loader_count; ++i) {
    iree_hal_executable_loader_release(loaders[i]);
  }
  iree_task_executor_release(executor);
  return status;
}
