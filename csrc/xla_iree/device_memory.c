// How much memory a device has, and how much of it is in use.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define HH_MAX_HEAPS 32

// What the operating system says of the host's memory; zeros where it does not.
static void hh_host_memory(uint64_t* out_total, uint64_t* out_free) {
  *out_total = *out_free = 0;
  const long page = sysconf(_SC_PAGESIZE);
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (page > 0 && pages > 0) *out_total = (uint64_t)pages * (uint64_t)page;
  FILE* file = fopen("/proc/meminfo", "r");
  if (!file) return;
  char line[128];
  unsigned long long kib = 0;
  while (fgets(line, sizeof(line), file)) {
    if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
      *out_free = (uint64_t)kib * 1024;
      break;
    }
  }
  fclose(file);
}

hh_iree_error_t* hh_iree_device_memory(const hh_iree_device_t* device,
                                       hh_iree_memory_stats_t* out_stats) {
  HH_NULL_CHECK(device);
  iree_hal_allocator_t* allocator = iree_hal_device_allocator(hh_device_hal(device));
  hh_iree_memory_stats_t stats = {0};
  iree_hal_allocator_statistics_t counted;
  memset(&counted, 0, sizeof(counted));
  iree_hal_allocator_query_statistics(allocator, &counted);
#if IREE_STATISTICS_ENABLE
  const uint64_t allocated = counted.host_bytes_allocated + counted.device_bytes_allocated;
  const uint64_t freed = counted.host_bytes_freed + counted.device_bytes_freed;
  stats.allocated_bytes = allocated > freed ? allocated - freed : 0;
  stats.peak_bytes = counted.host_bytes_peak + counted.device_bytes_peak;
#endif
  iree_hal_allocator_memory_heap_t heaps[HH_MAX_HEAPS];
  iree_host_size_t heap_count = 0;
  hh_iree_error_t* error = hh_error_from_status(
      iree_hal_allocator_query_memory_heaps(allocator, HH_MAX_HEAPS, heaps, &heap_count));
  if (error) return error;
  for (iree_host_size_t i = 0; i < heap_count; ++i) {
    if (heaps[i].max_allocation_size == ~(iree_device_size_t)0) continue;
    if (!iree_all_bits_set(heaps[i].type, IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL)) continue;
    if (heaps[i].max_allocation_size > stats.max_allocation_bytes) {
      stats.max_allocation_bytes = heaps[i].max_allocation_size;
    }
  }
  if (hh_iree_device_shares_host_memory(device)) {
    hh_host_memory(&stats.total_bytes, &stats.free_bytes);
  }
  return hh_write_struct("memory stats", &stats, out_stats, sizeof(stats));
}
