//! Types that cross: plain structs, JSON for what is data and cold, pointers for what is hot.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;

use abi_stable::StableAbi;
use abi_stable::std_types::{RResult, RSlice, RStr, RString, RVec};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dtype::DType;
use crate::error::{ErrorCode, SeamError, SeamResult};
use crate::quant::AffineScheme;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weights::{AffineTensor, Weight, WeightForm, Weights};

/// Failure on the wire: a [`SeamError`] as JSON, owned by whoever holds it.
pub type WireResult<T> = RResult<T, RString>;

/// Encodes a value whose serde form cannot fail.
pub fn to_json<T: Serialize>(value: &T) -> SeamResult<RString> {
    serde_json::to_string(value)
        .map(RString::from)
        .map_err(|e| SeamError::new(ErrorCode::Backend, format!("encoding for a plugin: {e}")))
}

/// Decodes what the other side encoded.
pub fn from_json<T: DeserializeOwned>(text: &str) -> SeamResult<T> {
    serde_json::from_str(text).map_err(|e| {
        SeamError::new(
            ErrorCode::Incompatible,
            format!("the other side of the plugin boundary sent something unknown: {e}"),
        )
        .hint("rebuild the plugin with this version of halfhitch")
    })
}

/// Encodes an error; falls back to its message, so that it never gets lost.
pub fn error_to_wire(error: &SeamError) -> RString {
    to_json(error).unwrap_or_else(|_| RString::from(error.message.as_str()))
}

/// Decodes an error.
pub fn error_from_wire(text: &RString) -> SeamError {
    serde_json::from_str(text.as_str())
        .unwrap_or_else(|_| SeamError::new(ErrorCode::Backend, text.as_str()))
}

/// A result for the wire.
pub fn to_wire<T>(result: SeamResult<T>) -> WireResult<T> {
    match result {
        Ok(value) => RResult::ROk(value),
        Err(e) => RResult::RErr(error_to_wire(&e)),
    }
}

/// A result from the wire.
pub fn from_wire<T>(result: WireResult<T>) -> SeamResult<T> {
    match result {
        RResult::ROk(value) => Ok(value),
        RResult::RErr(e) => Err(error_from_wire(&e)),
    }
}

/// Shared bytes. The receiver owns one reference and gives it back through `release`.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireBytes {
    data: *const u8,
    len: usize,
    owner: *const c_void,
    release: unsafe extern "C" fn(*const c_void),
}

// SAFETY: the bytes are immutable and their owner is a `Bytes`, which is Send and Sync; `release`
// only drops it.
unsafe impl Send for WireBytes {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for WireBytes {}

impl WireBytes {
    fn new(bytes: &Bytes) -> Self {
        let owner = Box::new(bytes.clone());
        Self {
            data: owner.as_ptr(),
            len: owner.len(),
            owner: Box::into_raw(owner).cast(),
            release: release_bytes,
        }
    }
}

impl AsRef<[u8]> for WireBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the sender keeps `data..data + len` valid and unchanged until `release`.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for WireBytes {
    fn drop(&mut self) {
        // SAFETY: the reference is given back once, here, to the library that made it.
        unsafe { (self.release)(self.owner) }
    }
}

unsafe extern "C" fn release_bytes(owner: *const c_void) {
    // SAFETY: `owner` came from `Box::into_raw` of a `Box<Bytes>` in `WireBytes::new` of this
    // library, and is released once.
    drop(unsafe { Box::from_raw(owner.cast_mut().cast::<Bytes>()) });
}

/// A tensor.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireTensor {
    dtype: u8,
    shape: RVec<usize>,
    bytes: WireBytes,
}

const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::U32];

impl WireTensor {
    fn new(tensor: &Tensor) -> Self {
        let dtype = DTYPES.iter().position(|&d| d == tensor.dtype());
        Self {
            dtype: dtype.map_or(u8::MAX, |d| d as u8),
            shape: tensor.shape().to_vec().into(),
            bytes: WireBytes::new(tensor.bytes()),
        }
    }

    fn into_tensor(self) -> SeamResult<Tensor> {
        let dtype = DTYPES
            .get(usize::from(self.dtype))
            .copied()
            .ok_or_else(|| {
                SeamError::new(ErrorCode::Incompatible, "an element type it does not know")
            })?;
        Tensor::new(dtype, self.shape.into_vec(), Bytes::from_owner(self.bytes))
    }
}

/// A weight: its name and form as JSON, and one tensor (dense) or three (words, scales, biases).
#[repr(C)]
#[derive(StableAbi)]
pub struct WireWeight {
    id: RString,
    form: RString,
    parts: RVec<WireTensor>,
}

/// All weights, ready to cross.
pub fn weights_to_wire(weights: &Weights) -> SeamResult<RVec<WireWeight>> {
    weights
        .iter()
        .map(|(id, weight)| {
            let parts: Vec<_> = match weight {
                Weight::Dense(t) => vec![WireTensor::new(t)],
                Weight::Affine(a) => [a.words(), a.scales(), a.biases()]
                    .map(WireTensor::new)
                    .into(),
            };
            Ok(WireWeight {
                id: to_json(&id)?,
                form: to_json(&weight.form())?,
                parts: parts.into(),
            })
        })
        .collect()
}

/// All weights that crossed.
pub fn weights_from_wire(weights: RVec<WireWeight>) -> SeamResult<Weights> {
    weights
        .into_iter()
        .map(|w| {
            let id = from_json(&w.id)?;
            let mut parts = w.parts.into_iter().map(WireTensor::into_tensor);
            let mut next = || {
                parts.next().unwrap_or_else(|| {
                    Err(SeamError::new(
                        ErrorCode::Incompatible,
                        "a weight lacks a part",
                    ))
                })
            };
            let weight = match from_json::<WeightForm>(&w.form)? {
                WeightForm::Dense(_) => Weight::Dense(next()?),
                WeightForm::Affine(scheme) => affine(scheme, &mut next)?,
            };
            Ok((id, weight))
        })
        .collect()
}

fn affine(
    scheme: AffineScheme,
    next: &mut impl FnMut() -> SeamResult<Tensor>,
) -> SeamResult<Weight> {
    let (words, scales, biases) = (next()?, next()?, next()?);
    AffineTensor::new(scheme, words, scales, biases).map(Weight::Affine)
}

/// Cancellation and progress, lent for one call.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireControl<'a> {
    /// The caller's flag, kept alive by `owner` beyond the call if need be.
    pub cancel: WireFlag,
    /// Passed to `on_event`.
    pub observer: &'a WireObserver,
}

/// A flag of the other library. The receiver owns one reference.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireFlag {
    /// An `AtomicBool`, which is a byte in memory.
    pub flag: *const c_void,
    /// What keeps it alive.
    pub owner: *const c_void,
    /// Gives `owner` back.
    pub release: unsafe extern "C" fn(*const c_void),
}

/// A [`WireFlag`] on the receiving side.
pub struct ForeignFlag(WireFlag);

// SAFETY: an atomic may be read from any thread, and its owner is an `Arc` of Send and Sync data.
unsafe impl Send for ForeignFlag {}
// SAFETY: as above.
unsafe impl Sync for ForeignFlag {}

impl ForeignFlag {
    /// Takes the reference over.
    pub fn new(flag: WireFlag) -> Self {
        Self(flag)
    }

    /// The flag.
    pub fn get(&self) -> &AtomicBool {
        // SAFETY: `flag` points at an AtomicBool that `owner` keeps alive until `release`.
        unsafe { &*self.0.flag.cast::<AtomicBool>() }
    }
}

impl Drop for ForeignFlag {
    fn drop(&mut self) {
        // SAFETY: given back once, to the library that made it.
        unsafe { (self.0.release)(self.0.owner) }
    }
}

/// Where a plugin reports events.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireObserver {
    /// The host's observer; opaque to the plugin.
    pub context: *const c_void,
    /// Reports one event: a stage with `done` of `total`, or (stage 255) a note.
    pub on_event: unsafe extern "C" fn(*const c_void, u8, u64, u64, RStr<'_>),
}

/// What a call shall return; [`OutputRequest`](crate::OutputRequest) on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireOutput {
    /// 0 none, 1 greedy.
    pub sample: u8,
    /// 0 none, 1 last, 2 all.
    pub logits: u8,
    /// Likeliest tokens.
    pub top_logprobs: u32,
}

/// One sequence's part in a decode step.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireDecode {
    /// The sequence.
    pub sequence: u64,
    /// The token.
    pub token: u32,
}

/// A token and its log-probability.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireLogprob {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// What a step returned.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireStep {
    /// Whether there is a token.
    pub has_token: bool,
    /// The token.
    pub token: u32,
    /// Logits.
    pub logits: RVec<f32>,
    /// Likeliest tokens.
    pub top_logprobs: RVec<WireLogprob>,
}

/// An intermediate result: its [`TapSite`](crate::TapSite) as JSON, its shape and its numbers.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireTap {
    site: RString,
    tokens: usize,
    width: usize,
    values: RVec<f32>,
}

impl WireTap {
    /// Ready to cross.
    pub fn new(tap: Tap) -> SeamResult<Self> {
        let [tokens, width] = tap.shape;
        Ok(Self {
            site: to_json(&tap.site)?,
            tokens,
            width,
            values: tap.values.into(),
        })
    }

    /// What crossed.
    pub fn into_tap(self) -> SeamResult<Tap> {
        let site = from_json(&self.site)?;
        Tap::new(site, [self.tokens, self.width], self.values.into_vec())
    }
}

/// What opens a session: plan and model as JSON, the weights, and the call's control.
#[repr(C)]
#[derive(StableAbi)]
pub struct WireOpen<'a> {
    /// [`ExecutionPlan`](crate::ExecutionPlan).
    pub plan: RStr<'a>,
    /// [`ModelSpec`](crate::ModelSpec).
    pub model: RStr<'a>,
    /// Weights; the plugin owns the references.
    pub weights: RVec<WireWeight>,
    /// Cancellation and progress.
    pub control: WireControl<'a>,
}

/// Tokens lent for one call.
pub type WireTokens<'a> = RSlice<'a, u32>;
