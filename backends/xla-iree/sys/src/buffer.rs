//! Buffers: typed memory of a device.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use bytes::Bytes;

use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::ffi;

/// Element types. `I4` and `U4` are packed two to a byte, the low nibble first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum DType {
    F32 = 1,
    F16 = 2,
    Bf16 = 3,
    I8 = 4,
    U8 = 5,
    I4 = 6,
    U4 = 7,
    I32 = 8,
    U32 = 9,
    I64 = 10,
    I16 = 11,
    U16 = 12,
    Bool = 13,
}

impl DType {
    /// Every type.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I8,
        Self::U8,
        Self::I4,
        Self::U4,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::I16,
        Self::U16,
        Self::Bool,
    ];

    /// The bits of one element.
    pub fn bits(self) -> u32 {
        match self {
            Self::I4 | Self::U4 => 4,
            Self::I8 | Self::U8 | Self::Bool => 8,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 16,
            Self::F32 | Self::I32 | Self::U32 => 32,
            Self::I64 => 64,
        }
    }

    /// The bytes of a shape, or `None` when they overflow.
    pub fn byte_length(self, dims: &[usize]) -> Option<usize> {
        let count = dims
            .iter()
            .try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        Some(count.checked_mul(self.bits() as usize)?.div_ceil(8))
    }

    fn from_raw(raw: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as i32 == raw)
    }
}

/// Whether content is copied to the device or used where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Policy {
    /// Import where the device shares host memory and the address is aligned, else copy.
    #[default]
    Auto = 0,
    /// Always copy.
    Copy = 1,
    /// Import whenever the device takes it, even if it is slow to read, else copy.
    PreferImport = 2,
    /// Import or fail.
    RequireImport = 3,
}

/// How a buffer got its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Zeroed memory of the device.
    Allocated,
    /// Uploaded by copy.
    Copied,
    /// The host memory that was given, without a copy.
    Imported,
    /// A program's result.
    Result,
}

/// Typed memory of a device. Cheap to clone: a clone is the same memory.
#[derive(Clone)]
pub struct Buffer {
    inner: std::sync::Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::hh_iree_buffer_t>,
    dtype: DType,
    dims: Vec<usize>,
    device: Device,
}

// SAFETY: xla_iree.h: buffer handles may be used from several threads at once and freed on any. What
// keeps host access and invocations apart is the contract of `Program::load`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and this is its last use.
        unsafe { ffi::hh_iree_buffer_free(self.raw.as_ptr()) };
    }
}

impl Buffer {
    /// Makes a buffer with this content, which must have exactly the shape's bytes.
    ///
    /// Imported content is kept alive until the last user of the buffer is gone; copied content is let
    /// go before this returns. [`Buffer::origin`] tells which happened. A mapped file comes here as
    /// `Bytes::from_owner(mapping)` and slices of it.
    pub fn upload(
        device: &Device,
        dtype: DType,
        dims: &[usize],
        content: Bytes,
        policy: Policy,
    ) -> Result<Self> {
        let (rank, raw_dims) = convert_dims(dims)?;
        let (data, length) = (content.as_ptr(), content.len());
        let upload = ffi::hh_iree_upload_t {
            struct_size: size_of::<ffi::hh_iree_upload_t>(),
            data: data.cast(),
            length,
            dtype: dtype as i32,
            policy: policy as i32,
            rank,
            dims: raw_dims,
            release: Some(release),
            release_user_data: keep(content),
            // `Bytes` are shared: nobody may write them.
            writable: false,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call. The content stays where it is, unchanged, until
        // `release` drops the `Bytes` that own it, which C calls exactly once.
        unsafe { check(ffi::hh_iree_buffer_upload(device.raw(), &upload, &mut raw))? };
        // SAFETY: the call succeeded, so it returned a buffer of this device that we own.
        unsafe { Self::from_raw(raw, device) }
    }

    /// Allocates memory of the device's own, filled with zero bytes: a KV cache, for example.
    pub fn allocate(device: &Device, dtype: DType, dims: &[usize]) -> Result<Self> {
        let (rank, raw_dims) = convert_dims(dims)?;
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and `rank` is at most the array's length.
        unsafe {
            let error = ffi::hh_iree_buffer_allocate(
                device.raw(),
                dtype as i32,
                rank,
                raw_dims.as_ptr(),
                &mut raw,
            );
            check(error)?;
            Self::from_raw(raw, device)
        }
    }

    /// Another view of the same memory: the same bytes as another type or shape.
    pub fn alias(&self, dtype: DType, dims: &[usize]) -> Result<Self> {
        let (rank, raw_dims) = convert_dims(dims)?;
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and `rank` is at most the array's length.
        unsafe {
            check(ffi::hh_iree_buffer_alias(
                self.raw(),
                dtype as i32,
                rank,
                raw_dims.as_ptr(),
                &mut raw,
            ))?;
            Self::from_raw(raw, &self.inner.device)
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.inner.dtype
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.inner.dims
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The content's size.
    pub fn byte_length(&self) -> usize {
        // SAFETY: the handle is valid. A buffer's length fits usize: shapes that do not are refused.
        unsafe { ffi::hh_iree_buffer_byte_length(self.raw()) as usize }
    }

    /// How it got its memory.
    pub fn origin(&self) -> Origin {
        // SAFETY: the handle is valid.
        match unsafe { ffi::hh_iree_buffer_origin(self.raw()) } {
            0 => Origin::Allocated,
            1 => Origin::Copied,
            2 => Origin::Imported,
            _ => Origin::Result,
        }
    }

    /// Where the content lies in host memory, if the device shares it. For tests and diagnosis.
    pub fn host_address(&self) -> Option<*const u8> {
        // SAFETY: the handle is valid.
        let address = unsafe { ffi::hh_iree_buffer_host_address(self.raw()) };
        (!address.is_null()).then_some(address.cast())
    }

    /// Copies `target.len()` bytes from `offset` of the buffer.
    pub fn read_into(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        // SAFETY: the target is valid for its length; C checks the range of the buffer.
        unsafe {
            let error = ffi::hh_iree_buffer_read(
                self.raw(),
                offset as u64,
                target.as_mut_ptr().cast(),
                target.len(),
            );
            check(error)
        }
    }

    /// The whole content.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut content = vec![0; self.byte_length()];
        self.read_into(0, &mut content)?;
        Ok(content)
    }

    /// Copies `source` to `offset` of the buffer. Refused for an imported buffer.
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        // SAFETY: the source is valid for its length; C checks the range of the buffer.
        unsafe {
            let error = ffi::hh_iree_buffer_write(
                self.raw(),
                offset as u64,
                source.as_ptr().cast(),
                source.len(),
            );
            check(error)
        }
    }

    /// Fills the buffer with zero bytes. Refused for an imported buffer.
    pub fn zero(&self) -> Result<()> {
        // SAFETY: the handle is valid.
        unsafe { check(ffi::hh_iree_buffer_zero(self.raw())) }
    }

    pub(crate) fn raw(&self) -> *mut ffi::hh_iree_buffer_t {
        self.inner.raw.as_ptr()
    }

    /// # Safety
    ///
    /// `raw` is NULL or a buffer of `device` that the caller owns and hands over.
    pub(crate) unsafe fn from_raw(
        raw: *mut ffi::hh_iree_buffer_t,
        device: &Device,
    ) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid("no buffer was returned"))?;
        // SAFETY: the handle is valid; indices below the rank give dimensions, which are not negative.
        let (dtype, dims) = unsafe {
            let rank = ffi::hh_iree_buffer_rank(raw.as_ptr());
            let dims = (0..rank)
                .map(|index| ffi::hh_iree_buffer_dim(raw.as_ptr(), index) as usize)
                .collect();
            (
                DType::from_raw(ffi::hh_iree_buffer_dtype(raw.as_ptr())),
                dims,
            )
        };
        let Some(dtype) = dtype else {
            // SAFETY: the caller handed the buffer over; this is its last use.
            unsafe { ffi::hh_iree_buffer_free(raw.as_ptr()) };
            return Err(Error::invalid(
                "the buffer has an element type that is not supported here",
            ));
        };
        Ok(Self {
            inner: std::sync::Arc::new(Inner {
                raw,
                dtype,
                dims,
                device: device.clone(),
            }),
        })
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Buffer({:?} {:?}, {:?})",
            self.dtype(),
            self.dims(),
            self.origin()
        )
    }
}

/// The rank and the dimensions as C wants them.
fn convert_dims(dims: &[usize]) -> Result<(usize, [i64; ffi::HH_IREE_MAX_RANK])> {
    let mut raw = [0; ffi::HH_IREE_MAX_RANK];
    if dims.len() > raw.len() {
        return Err(Error::invalid(format!(
            "rank {}; at most {} is possible",
            dims.len(),
            raw.len()
        )));
    }
    for (target, &dim) in raw.iter_mut().zip(dims) {
        *target =
            i64::try_from(dim).map_err(|_| Error::invalid(format!("a dimension of {dim}")))?;
    }
    Ok((dims.len(), raw))
}

/// Puts an owner of memory behind a pointer for C, until [`release`] is called with it.
pub(crate) fn keep(owner: impl Any + Send + Sync) -> *mut c_void {
    let owner: Box<dyn Any + Send + Sync> = Box::new(owner);
    Box::into_raw(Box::new(owner)).cast()
}

/// Drops what [`keep`] kept. C calls it once, from any thread.
pub(crate) unsafe extern "C" fn release(user_data: *mut c_void) {
    // SAFETY: the pointer is from `keep`, and C promises to call exactly once. The owner is Send, so
    // any thread may drop it.
    let owner = unsafe { Box::from_raw(user_data.cast::<Box<dyn Any + Send + Sync>>()) };
    // A panic must not reach C.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(owner)));
}
