//! The root module: the functions of a plugin, checked for layout by abi_stable.

use std::ffi::c_void;

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RSlice, RStr, RString, RVec};

use super::log::LogSink;
use super::wire::{
    WireControl, WireDecode, WireOpen, WireOutput, WireResult, WireStep, WireTap, WireTokens,
};

/// A backend or session inside the plugin. Opaque to the host, which gives it back with the matching
/// `drop_*` function.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy)]
pub struct Handle(pub *mut c_void);

// SAFETY: a handle stands for a boxed `dyn ComputeBackend` (Send + Sync) or `dyn Session` (Send);
// the owning types on the host's side restrict themselves accordingly.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The functions a plugin exports. Every one catches its panics and returns them as errors. Fields are
/// only ever appended.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef)))]
#[sabi(missing_field(panic))]
pub struct PluginModule {
    /// Makes the backend. The sink receives its log events from then on.
    pub create: extern "C" fn(LogSink) -> WireResult<Handle>,
    /// Drops a backend; its sessions are dropped before.
    pub drop_backend: extern "C" fn(Handle),
    /// [`BackendIdentity`](crate::BackendIdentity) as JSON.
    pub identity: extern "C" fn(Handle) -> WireResult<RString>,
    /// A list of [`DeviceInfo`](crate::DeviceInfo) as JSON.
    pub devices: extern "C" fn(Handle) -> WireResult<RString>,
    /// [`DeviceCapabilities`](crate::DeviceCapabilities) of a device id, as JSON.
    pub capabilities: extern "C" fn(Handle, RStr<'_>) -> WireResult<RString>,
    /// Opens a session.
    pub open: extern "C" fn(Handle, WireOpen<'_>) -> WireResult<Handle>,
    /// Drops a session.
    pub drop_session: extern "C" fn(Handle),
    /// Makes a sequence.
    pub create_sequence: extern "C" fn(Handle) -> WireResult<u64>,
    /// A sequence's length.
    pub sequence_len: extern "C" fn(Handle, u64) -> WireResult<usize>,
    /// Appends tokens to a sequence.
    pub prefill: extern "C" fn(
        Handle,
        u64,
        WireTokens<'_>,
        WireOutput,
        WireControl<'_>,
    ) -> WireResult<WireStep>,
    /// One decode step.
    pub decode:
        extern "C" fn(Handle, RSlice<'_, WireDecode>, WireOutput) -> WireResult<RVec<WireStep>>,
    /// Cuts a sequence.
    pub truncate: extern "C" fn(Handle, u64, usize) -> WireResult<()>,
    /// Does a [`CacheAction`](crate::CacheAction), given and answered as JSON.
    pub cache: extern "C" fn(Handle, RStr<'_>) -> WireResult<RString>,
    /// Does a [`GraphRequest`](crate::GraphRequest), given and answered as JSON.
    pub graph: extern "C" fn(Handle, RStr<'_>, WireControl<'_>) -> WireResult<RString>,
    /// Drops a sequence.
    #[sabi(last_prefix_field)]
    pub release: extern "C" fn(Handle, u64) -> WireResult<()>,
    /// Intermediate results of a sequence of its own. Since 1.1.
    #[sabi(missing_field(option))]
    pub tap: extern "C" fn(Handle, WireTokens<'_>, WireControl<'_>) -> WireResult<RVec<WireTap>>,
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}
    const BASE_NAME: &'static str = "halfhitch_plugin";
    const NAME: &'static str = "halfhitch_plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}
