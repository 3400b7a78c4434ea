//! Calls: one function with its arguments, invoked again and again.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use crate::buffer::Buffer;
use crate::error::{Error, Result, check};
use crate::ffi;
use crate::program::Program;
use crate::runtime::c_string;

/// The kind of an argument or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Buffer,
    I32,
    I64,
    F32,
    F64,
}

impl Kind {
    fn from_raw(raw: i32) -> Option<Self> {
        Some(match raw {
            1 => Self::Buffer,
            2 => Self::I32,
            3 => Self::I64,
            4 => Self::F32,
            5 => Self::F64,
            _ => return None,
        })
    }
}

/// One function of a program with its arguments.
///
/// Arguments are set by position and stay set over invocations: a decode loop sets what changes and
/// invokes again. The call keeps the buffers that are set alive.
pub struct Call {
    raw: NonNull<ffi::hh_iree_call_t>,
    program: Program,
}

// SAFETY: xla_iree.h: any thread may use a call, one at a time. There is no `Sync`: whoever has it
// borrowed is the one user, but for functions that take `&self` and only read.
unsafe impl Send for Call {}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and this is its last use.
        unsafe { ffi::hh_iree_call_free(self.raw.as_ptr()) };
    }
}

impl Call {
    pub(crate) fn new(program: &Program, name: &str) -> Result<Self> {
        let name = c_string("function", name)?;
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call.
        unsafe {
            check(ffi::hh_iree_call_create(
                program.raw(),
                name.as_ptr(),
                &mut raw,
            ))?
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid("no call was returned"))?;
        Ok(Self {
            raw,
            program: program.clone(),
        })
    }

    /// The kinds of the arguments, in order.
    pub fn argument_kinds(&self) -> Vec<Kind> {
        // SAFETY: the handle is valid; any index may be asked for.
        let kinds = unsafe {
            let count = ffi::hh_iree_call_argument_count(self.raw());
            (0..count)
                .map(|index| ffi::hh_iree_call_argument_kind(self.raw(), index))
                .collect::<Vec<_>>()
        };
        kinds.into_iter().filter_map(Kind::from_raw).collect()
    }

    /// The kinds of the results, in order.
    pub fn result_kinds(&self) -> Vec<Kind> {
        // SAFETY: the handle is valid; any index may be asked for.
        let kinds = unsafe {
            let count = ffi::hh_iree_call_result_count(self.raw());
            (0..count)
                .map(|index| ffi::hh_iree_call_result_kind(self.raw(), index))
                .collect::<Vec<_>>()
        };
        kinds.into_iter().filter_map(Kind::from_raw).collect()
    }

    /// Sets argument `index` to a buffer of the program's device.
    pub fn set_buffer(&mut self, index: usize, buffer: &Buffer) -> Result<()> {
        // SAFETY: both handles are valid; C checks the index, the kind and the device.
        unsafe {
            check(ffi::hh_iree_call_set_buffer(
                self.raw(),
                index,
                buffer.raw(),
            ))
        }
    }

    /// Sets argument `index` to a number.
    pub fn set_i32(&mut self, index: usize, value: i32) -> Result<()> {
        // SAFETY: the handle is valid; C checks the index and the kind.
        unsafe { check(ffi::hh_iree_call_set_i32(self.raw(), index, value)) }
    }

    /// Sets argument `index` to a number.
    pub fn set_i64(&mut self, index: usize, value: i64) -> Result<()> {
        // SAFETY: the handle is valid; C checks the index and the kind.
        unsafe { check(ffi::hh_iree_call_set_i64(self.raw(), index, value)) }
    }

    /// Sets argument `index` to a number.
    pub fn set_f32(&mut self, index: usize, value: f32) -> Result<()> {
        // SAFETY: the handle is valid; C checks the index and the kind.
        unsafe { check(ffi::hh_iree_call_set_f32(self.raw(), index, value)) }
    }

    /// Forgets all arguments and results, and lets their buffers go.
    pub fn clear(&mut self) {
        // SAFETY: the handle is valid.
        unsafe { ffi::hh_iree_call_clear(self.raw()) }
    }

    /// Runs the function and waits for its end. Results of the run before are dropped first; those
    /// that were fetched live on. Waits for other calls of the same program.
    pub fn invoke(&mut self) -> Result<()> {
        let _running = self
            .program
            .inner
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is valid and borrowed by us alone, and the lock keeps other invocations of
        // this program out. What the code does is the promise of whoever loaded it.
        unsafe { check(ffi::hh_iree_call_invoke(self.raw())) }
    }

    /// Result `index` of the last invocation.
    pub fn result_buffer(&self, index: usize) -> Result<Buffer> {
        let mut raw = ptr::null_mut();
        // SAFETY: the handle is valid; on success the buffer is ours and of the program's device.
        unsafe {
            check(ffi::hh_iree_call_result_buffer(self.raw(), index, &mut raw))?;
            Buffer::from_raw(raw, self.program.device())
        }
    }

    /// Result `index` of the last invocation.
    pub fn result_i32(&self, index: usize) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the handle and the out pointer are valid.
        unsafe { check(ffi::hh_iree_call_result_i32(self.raw(), index, &mut value))? };
        Ok(value)
    }

    /// Result `index` of the last invocation.
    pub fn result_i64(&self, index: usize) -> Result<i64> {
        let mut value = 0;
        // SAFETY: the handle and the out pointer are valid.
        unsafe { check(ffi::hh_iree_call_result_i64(self.raw(), index, &mut value))? };
        Ok(value)
    }

    /// Result `index` of the last invocation.
    pub fn result_f32(&self, index: usize) -> Result<f32> {
        let mut value = 0.0;
        // SAFETY: the handle and the out pointer are valid.
        unsafe { check(ffi::hh_iree_call_result_f32(self.raw(), index, &mut value))? };
        Ok(value)
    }

    /// Drops the last invocation's results early, so that their memory is free before the next one.
    pub fn drop_results(&mut self) {
        // SAFETY: the handle is valid.
        unsafe { ffi::hh_iree_call_drop_results(self.raw()) }
    }

    fn raw(&self) -> *mut ffi::hh_iree_call_t {
        self.raw.as_ptr()
    }
}
