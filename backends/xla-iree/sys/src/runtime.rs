//! The runtime: the linked drivers, and where log events go.

use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::device::{self, Device, DeviceInfo, DeviceOptions};
use crate::error::{Error, Result, check};
use crate::ffi;

/// How much a log event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something may be wrong.
    Warn,
    /// Something worth knowing happened.
    Info,
    /// For looking closely.
    Debug,
}

/// Receives log events, from any thread. It must not use this crate; a panic in it is swallowed.
pub type LogSink = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The IREE runtime of this process's library, with all drivers that are linked in.
///
/// Cheap to clone; what comes from it keeps it alive.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: NonNull<ffi::hh_iree_runtime_t>,
    /// What `raw` calls for events; dropped after it. Boxed twice for a thin pointer.
    _log: Option<Box<LogSink>>,
}

// SAFETY: xla_iree.h: runtime handles may be used from several threads at once and freed on any; the
// sink is Send and Sync.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `raw` is ours, and this is the last use. Whatever else the C runtime was kept alive
        // by (devices, buffers, programs) holds an `Arc` on this, so it is gone and logs no more.
        unsafe { ffi::hh_iree_runtime_free(self.raw.as_ptr()) };
    }
}

impl Runtime {
    /// Makes a runtime. Events go to `log`, or nowhere.
    pub fn new(log: Option<LogSink>) -> Result<Self> {
        let log = log.map(Box::new);
        let user_data = log.as_deref().map_or(ptr::null_mut(), |sink| {
            ptr::from_ref(sink).cast_mut().cast()
        });
        let options = ffi::hh_iree_runtime_options_t {
            struct_size: size_of::<ffi::hh_iree_runtime_options_t>(),
            log: log
                .as_ref()
                .map(|_| forward as unsafe extern "C" fn(*mut c_void, i32, *const c_char)),
            log_user_data: user_data,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the options and the out pointer are valid for the call; the sink lives in `Inner`.
        unsafe { check(ffi::hh_iree_runtime_create(&options, &mut raw))? };
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid("no runtime was returned"))?;
        Ok(Self {
            inner: Arc::new(Inner { raw, _log: log }),
        })
    }

    /// The names of the drivers that are linked in. That does not mean that they work here.
    pub fn drivers(&self) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            // SAFETY: the handle is valid; any index may be asked for.
            let name = unsafe { ffi::hh_iree_runtime_driver(self.raw(), names.len()) };
            if name.is_null() {
                return names;
            }
            // SAFETY: a NUL-terminated string that lives as long as the runtime.
            names.push(
                unsafe { CStr::from_ptr(name) }
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }

    /// The devices that `driver` sees. Loads the driver's system library.
    pub fn devices(&self, driver: &str) -> Result<Vec<DeviceInfo>> {
        let driver = c_string("driver", driver)?;
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call.
        unsafe {
            check(ffi::hh_iree_device_list_create(
                self.raw(),
                driver.as_ptr(),
                &mut raw,
            ))?
        };
        let list = List(raw);
        // SAFETY: the list is valid until it is dropped.
        let count = unsafe { ffi::hh_iree_device_list_count(list.0) };
        (0..count)
            .map(|index| {
                let mut info = device::empty_info();
                // SAFETY: as above; `info` has its size set.
                unsafe { check(ffi::hh_iree_device_list_get(list.0, index, &mut info))? };
                // SAFETY: the strings live as long as the list.
                Ok(unsafe { device::read_info(&info) })
            })
            .collect()
    }

    /// Opens a device.
    pub fn open(&self, options: &DeviceOptions) -> Result<Device> {
        Device::open(self, options)
    }

    pub(crate) fn raw(&self) -> *mut ffi::hh_iree_runtime_t {
        self.inner.raw.as_ptr()
    }
}

struct List(*mut ffi::hh_iree_device_list_t);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is ours, and this is its last use.
        unsafe { ffi::hh_iree_device_list_free(self.0) };
    }
}

pub(crate) fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{what}: a NUL in the name {text:?}")))
}

unsafe extern "C" fn forward(user_data: *mut c_void, level: i32, text: *const c_char) {
    // SAFETY: `user_data` is the sink in `Inner`, which outlives everything that logs; the text is
    // NUL-terminated and valid for this call.
    let (sink, text) = unsafe { (&*user_data.cast::<LogSink>(), CStr::from_ptr(text)) };
    let level = match level {
        1 => LogLevel::Warn,
        2 => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    // A panic must not reach C.
    let _ = catch_unwind(AssertUnwindSafe(|| sink(level, &text.to_string_lossy())));
}
