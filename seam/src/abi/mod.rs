//! The plugin boundary: backends in dynamic libraries.
//!
//! A plugin is a cdylib that calls [`export_plugin!`](crate::export_plugin) once, with a function
//! that makes its [`ComputeBackend`](crate::ComputeBackend):
//!
//! ```text
//! halfhitch_seam::export_plugin!(|| Ok(Box::new(MyBackend::new()?)));
//! ```
//!
//! The host loads it with [`load_plugin`] and holds an ordinary `Box<dyn ComputeBackend>`.
//!
//! * **Handshake.** First the plain [`PluginHeader`] (magic, size, ABI version, target, panic
//!   strategy), then abi_stable's layout check of the root module. A mismatch names both sides.
//! * **Ownership.** Who allocates frees: whatever crosses carries the function that gives it back.
//!   Weights cross as references to the host's bytes; nothing is copied.
//! * **Panics.** Every entry of a plugin catches its own and returns an error; a session that
//!   panicked answers `Poisoned` from then on.
//! * **Unloading.** Never: a driver's threads may outlive its last handle.
//! * **Logs.** A plugin's `tracing` events come out of the host's, with level, target and fields.
//!
//! This is the only module that knows abi_stable (adr/0003).

mod export;
mod header;
mod import;
mod log;
mod module;
mod whole;
mod wire;

use crate::control::Stage;

pub use header::{ABI_VERSION, HEADER_SYMBOL, MAGIC, PANIC_ABORT, PANIC_UNWIND, PluginHeader};
pub use import::load_plugin;
pub use whole::check_whole;

pub(crate) use wire::ForeignFlag;

/// Stages by their number on the wire.
const STAGES: [Stage; 4] = [
    Stage::Compile,
    Stage::LoadWeights,
    Stage::Prefill,
    Stage::Tune,
];

/// The number that marks a note.
const STAGE_NOTE: u8 = u8::MAX;

/// What [`export_plugin!`](crate::export_plugin) expands to; not for direct use.
#[doc(hidden)]
pub mod private {
    pub use super::export::{Constructor, Plugin, load};
    pub use super::module::PluginModuleRef;
    pub use abi_stable::library::{
        __call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult,
    };
}

/// Exports a backend from a cdylib. Takes a `fn() -> SeamResult<Box<dyn ComputeBackend>>`.
#[macro_export]
macro_rules! export_plugin {
    ($constructor:expr) => {
        /// Who this plugin is; read before anything else.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static halfhitch_plugin_header: $crate::abi::PluginHeader =
            $crate::abi::PluginHeader::CURRENT;

        const _: () = {
            use $crate::abi::private as p;

            struct Exported;

            impl p::Plugin for Exported {
                const CONSTRUCTOR: p::Constructor = $constructor;
            }

            extern "C" fn erased() -> p::RootModuleResult {
                p::__call_root_module_loader(p::load::<Exported>)
            }

            // The name is abi_stable's; a test holds it to that.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            static ROOT_MODULE: p::LibHeader =
                // SAFETY: `erased` returns a `PluginModuleRef`.
                unsafe {
                    p::LibHeader::from_constructor::<p::PluginModuleRef>(
                        erased,
                        p::CheckTypeLayout::Yes,
                    )
                };
        };
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_root_module_has_the_name_that_abi_stable_looks_for() {
        let source = include_str!("mod.rs");
        let wanted = format!(
            "export_name = \"{}\"",
            abi_stable::library::ROOT_MODULE_LOADER_NAME
        );
        assert!(source.contains(&wanted), "{wanted}");
    }
}
