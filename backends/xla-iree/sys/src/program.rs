//! Programs: compiled modules on a device, with their named parameters.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::buffer::{keep, release};
use crate::call::Call;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::ffi;
use crate::runtime::c_string;

/// A weight that a program names: `#flow.parameter.named<"scope"::"key">`.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The scope.
    pub scope: String,
    /// The key.
    pub key: String,
    /// The content. Local drivers use it where it lies if it is aligned; others copy it at loading.
    pub content: Bytes,
}

/// What a program is made of.
#[derive(Clone, Debug, Default)]
pub struct ProgramSource {
    /// Compiled modules (.vmfb); later ones may call earlier ones. Those at a multiple of 64 bytes are
    /// used where they lie, others are copied.
    pub modules: Vec<Bytes>,
    /// Named parameters.
    pub parameters: Vec<Parameter>,
}

/// Compiled code on a device. Cheap to clone; its calls keep it alive.
#[derive(Clone)]
pub struct Program {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    raw: NonNull<ffi::hh_iree_program_t>,
    pub(crate) device: Device,
    /// Held while a call of this program runs: a context runs one at a time.
    pub(crate) running: Mutex<()>,
}

// SAFETY: xla_iree.h: any thread may use and free a program, if no two invocations run at once, which
// `running` sees to. Looking functions up only reads.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and this is its last use.
        unsafe { ffi::hh_iree_program_free(self.raw.as_ptr()) };
    }
}

impl Program {
    /// Loads modules on a device and runs their initialisers.
    ///
    /// # Safety
    ///
    /// The modules are native code, and run in this process as they are. The caller vouches that
    ///
    /// * they come from the pinned compiler and were not tampered with since;
    /// * they update none of their arguments in place but those that the caller sets to buffers which
    ///   were allocated or copied (never imported ones, which may lie in a read-only mapping);
    /// * while one of their calls runs, no other thread reads or writes a buffer which it updates.
    pub unsafe fn load(device: &Device, source: &ProgramSource) -> Result<Self> {
        let mut names = Vec::with_capacity(source.parameters.len());
        for parameter in &source.parameters {
            names.push((
                c_string("scope", &parameter.scope)?,
                c_string("key", &parameter.key)?,
            ));
        }
        // From here on nothing returns early: what `keep` keeps is C's to release.
        let modules: Vec<_> = source.modules.iter().map(raw_module).collect();
        let parameters: Vec<_> = source
            .parameters
            .iter()
            .zip(&names)
            .map(|(parameter, names)| raw_parameter(parameter, names))
            .collect();
        let options = ffi::hh_iree_program_options_t {
            struct_size: size_of::<ffi::hh_iree_program_options_t>(),
            modules: modules.as_ptr(),
            module_count: modules.len(),
            parameters: parameters.as_ptr(),
            parameter_count: parameters.len(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, with the counts of their arrays. Contents stay
        // where they are until `release` drops the `Bytes` that own them, which C calls exactly once
        // for each, also when it fails. The code itself is the caller's promise.
        unsafe {
            check(ffi::hh_iree_program_create(
                device.raw(),
                &options,
                &mut raw,
            ))?
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid("no program was returned"))?;
        Ok(Self {
            inner: Arc::new(Inner {
                raw,
                device: device.clone(),
                running: Mutex::new(()),
            }),
        })
    }

    /// Whether there is a function `module.name`.
    pub fn has_function(&self, name: &str) -> bool {
        let Ok(name) = c_string("function", name) else {
            return false;
        };
        // SAFETY: the handle and the name are valid for the call.
        unsafe { check(ffi::hh_iree_program_has_function(self.raw(), name.as_ptr())).is_ok() }
    }

    /// Prepares calls of the function `module.name`.
    pub fn call(&self, name: &str) -> Result<Call> {
        Call::new(self, name)
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(crate) fn raw(&self) -> *mut ffi::hh_iree_program_t {
        self.inner.raw.as_ptr()
    }
}

fn raw_module(content: &Bytes) -> ffi::hh_iree_module_t {
    ffi::hh_iree_module_t {
        struct_size: size_of::<ffi::hh_iree_module_t>(),
        data: content.as_ptr().cast(),
        length: content.len(),
        release: Some(release),
        release_user_data: keep(content.clone()),
    }
}

fn raw_parameter(parameter: &Parameter, names: &(CString, CString)) -> ffi::hh_iree_parameter_t {
    ffi::hh_iree_parameter_t {
        struct_size: size_of::<ffi::hh_iree_parameter_t>(),
        scope: names.0.as_ptr(),
        key: names.1.as_ptr(),
        data: parameter.content.as_ptr().cast(),
        length: parameter.content.len(),
        release: Some(release),
        release_user_data: keep(parameter.content.clone()),
    }
}
