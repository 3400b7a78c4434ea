//! Devices: which there are, opening one, its memory.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::{Code, Error, Result, check};
use crate::ffi;
use crate::runtime::{Runtime, c_string};

/// A device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver, for example `cuda`.
    pub driver: String,
    /// Stable over processes: the driver's path for the device, or `default` where there is but one.
    pub id: String,
    /// For people.
    pub name: String,
    /// Its position in the driver's list; may change from process to process.
    pub ordinal: usize,
}

/// Which device to open, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The driver.
    pub driver: String,
    /// Empty or `default`: the first device; a number: an ordinal; else an id.
    pub selector: String,
    /// `local-task`: threads, 1 to 64; 0 means one a physical core. Other drivers have none.
    pub workers: u32,
    /// `local-task`: microseconds that an idle worker spins before it sleeps.
    pub worker_spin_us: u32,
}

/// What is known of a device's memory. `None`: the driver does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// All memory of the device.
    pub total: Option<u64>,
    /// What is free at this moment.
    pub free: Option<u64>,
    /// Live in allocations of this device object; imports are not counted.
    pub allocated: u64,
    /// The most that ever was live.
    pub peak: u64,
    /// The largest single buffer that is possible.
    pub max_allocation: Option<u64>,
}

/// An open device. Cheap to clone; what comes from it keeps it alive.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::hh_iree_device_t>,
    info: DeviceInfo,
    _runtime: Runtime,
}

// SAFETY: xla_iree.h: device handles may be used from several threads at once and freed on any.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and this is its last use.
        unsafe { ffi::hh_iree_device_free(self.raw.as_ptr()) };
    }
}

impl Device {
    pub(crate) fn open(runtime: &Runtime, options: &DeviceOptions) -> Result<Self> {
        let driver = c_string("driver", &options.driver)?;
        let selector = c_string("device", &options.selector)?;
        let given = ffi::hh_iree_device_options_t {
            struct_size: size_of::<ffi::hh_iree_device_options_t>(),
            driver: driver.as_ptr(),
            device: selector.as_ptr(),
            workers: options.workers,
            worker_spin_us: options.worker_spin_us,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call.
        unsafe { check(ffi::hh_iree_device_create(runtime.raw(), &given, &mut raw))? };
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid("no device was returned"))?;
        let mut info = empty_info();
        // SAFETY: the device is valid; its strings live as long as it does. A failure frees it.
        let info = unsafe {
            match check(ffi::hh_iree_device_info(raw.as_ptr(), &mut info)) {
                Ok(()) => read_info(&info),
                Err(error) => {
                    ffi::hh_iree_device_free(raw.as_ptr());
                    return Err(error);
                }
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                raw,
                info,
                _runtime: runtime.clone(),
            }),
        })
    }

    /// What was opened.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The address alignment, in bytes, from which host memory can be imported without a copy.
    pub fn import_alignment(&self) -> usize {
        // SAFETY: the handle is valid.
        unsafe { ffi::hh_iree_device_import_alignment(self.raw()) }
    }

    /// Whether the device's memory is the host's, so that an import costs no speed.
    pub fn shares_host_memory(&self) -> bool {
        // SAFETY: the handle is valid.
        unsafe { ffi::hh_iree_device_shares_host_memory(self.raw()) }
    }

    /// What the driver says of the device under a category and a key of its own; `None` where it
    /// does not know the key. `("cuda.device", "compute_capability_major")`, `("vulkan.feature",
    /// "shader_float16")`.
    pub fn query(&self, category: &str, key: &str) -> Result<Option<i64>> {
        let category = c_string("category", category)?;
        let key = c_string("key", key)?;
        let mut value = 0;
        // SAFETY: the handle is valid, the strings and the number live for the call.
        let error = unsafe {
            ffi::hh_iree_device_query(self.raw(), category.as_ptr(), key.as_ptr(), &mut value)
        };
        // SAFETY: the error, where there is one, is ours and is freed by this.
        match unsafe { check(error) } {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.code == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is known of its memory.
    pub fn memory(&self) -> Result<MemoryStats> {
        let mut stats = ffi::hh_iree_memory_stats_t {
            struct_size: size_of::<ffi::hh_iree_memory_stats_t>(),
            ..Default::default()
        };
        // SAFETY: the handle is valid and `stats` has its size set.
        unsafe { check(ffi::hh_iree_device_memory(self.raw(), &mut stats))? };
        let known = |value: u64| (value > 0).then_some(value);
        Ok(MemoryStats {
            total: known(stats.total_bytes),
            free: known(stats.free_bytes),
            allocated: stats.allocated_bytes,
            peak: stats.peak_bytes,
            max_allocation: known(stats.max_allocation_bytes),
        })
    }

    /// Whether `other` is the same open device, so that their buffers go together.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn raw(&self) -> *mut ffi::hh_iree_device_t {
        self.inner.raw.as_ptr()
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("Device")
            .field(&self.inner.info)
            .finish()
    }
}

pub(crate) fn empty_info() -> ffi::hh_iree_device_info_t {
    ffi::hh_iree_device_info_t {
        struct_size: size_of::<ffi::hh_iree_device_info_t>(),
        driver: ptr::null(),
        id: ptr::null(),
        name: ptr::null(),
        ordinal: 0,
    }
}

/// # Safety
///
/// `info` was filled by the C side, and the list or device that owns its strings is alive.
pub(crate) unsafe fn read_info(info: &ffi::hh_iree_device_info_t) -> DeviceInfo {
    let text = |pointer| {
        // SAFETY: the caller says so; the strings are NUL-terminated.
        let text = unsafe { CStr::from_ptr(pointer) };
        text.to_string_lossy().into_owned()
    };
    DeviceInfo {
        driver: text(info.driver),
        id: text(info.id),
        name: text(info.name),
        ordinal: info.ordinal,
    }
}
