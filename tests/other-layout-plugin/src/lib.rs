//! A library with a valid header whose root module has another layout: what a plugin built against a
//! changed seam looks like. abi_stable's check must refuse it before anything is called.

use abi_stable::StableAbi;
use abi_stable::library::{
    __call_root_module_loader, CheckTypeLayout, LibHeader, RootModule, RootModuleResult,
};
use abi_stable::package_version_strings;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use halfhitch_seam::abi::PluginHeader;

/// The right header.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static halfhitch_plugin_header: PluginHeader = PluginHeader::CURRENT;

/// The right name, another first function.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef)))]
#[sabi(missing_field(panic))]
pub struct PluginModule {
    /// Takes and returns something else.
    #[sabi(last_prefix_field)]
    pub create: extern "C" fn(u64) -> u64,
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}
    const BASE_NAME: &'static str = "halfhitch_plugin";
    const NAME: &'static str = "halfhitch_plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

extern "C" fn create(x: u64) -> u64 {
    x
}

fn load() -> PluginModuleRef {
    PluginModule { create }.leak_into_prefix()
}

extern "C" fn erased() -> RootModuleResult {
    __call_root_module_loader(load)
}

#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
static ROOT_MODULE: LibHeader =
    // SAFETY: `erased` returns a `PluginModuleRef`.
    unsafe { LibHeader::from_constructor::<PluginModuleRef>(erased, CheckTypeLayout::Yes) };
