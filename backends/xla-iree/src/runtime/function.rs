//! A compiled function whose arguments are set by what they are.

use std::collections::BTreeMap;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, TapSite};
use halfhitch_xla_iree_sys::{Buffer, Call, Program};

use super::error::seam_error;
use super::upload::Uploaded;
use crate::emitter::layout::Role;
use crate::emitter::{MODULE_NAME, Signature};

/// A call of a function; weights are set once and stay.
pub struct Function {
    call: Call,
    signature: Signature,
    arguments: BTreeMap<Role, usize>,
    results: BTreeMap<Role, usize>,
    bound: bool,
}

impl Function {
    /// Looks the function up.
    ///
    /// # Errors
    /// `Backend` where the module has another function than its signature says.
    pub fn new(program: &Program, signature: &Signature) -> SeamResult<Self> {
        let name = format!("{MODULE_NAME}.{}", signature.name);
        let call = program.call(&name).map_err(seam_error)?;
        let (arguments, results) = (call.argument_kinds().len(), call.result_kinds().len());
        if arguments != signature.arguments.len() || results != signature.results.len() {
            return Err(SeamError::new(
                ErrorCode::Backend,
                format!("{name} takes {arguments} and returns {results}, not what was emitted"),
            ));
        }
        let by_role = |slots: &[crate::emitter::layout::Slot]| {
            slots.iter().enumerate().map(|(i, s)| (s.role, i)).collect()
        };
        Ok(Self {
            arguments: by_role(&signature.arguments),
            results: by_role(&signature.results),
            signature: signature.clone(),
            call,
            bound: false,
        })
    }

    /// Sets the weights, where they are not.
    ///
    /// # Errors
    /// `Backend`.
    pub fn bind(&mut self, weights: &Uploaded) -> SeamResult<()> {
        if self.bound {
            return Ok(());
        }
        for (i, slot) in self.signature.arguments.iter().enumerate() {
            if let Role::Weight { id, part } = slot.role {
                let buffer = weights.get(&(id, part)).ok_or_else(|| {
                    SeamError::new(ErrorCode::Backend, format!("`{id}` was not loaded"))
                })?;
                self.call.set_buffer(i, buffer).map_err(seam_error)?;
            }
        }
        self.bound = true;
        Ok(())
    }

    /// Lets every buffer go; the next call binds the weights again.
    pub fn release(&mut self) {
        self.call.clear();
        self.bound = false;
    }

    /// Sets a tensor.
    ///
    /// # Errors
    /// `Backend` for an argument that the function does not have.
    pub fn set(&mut self, role: Role, buffer: &Buffer) -> SeamResult<()> {
        let index = self.argument(role)?;
        self.call.set_buffer(index, buffer).map_err(seam_error)
    }

    /// Sets a number.
    ///
    /// # Errors
    /// As [`Self::set`]; also where it does not fit an i32.
    pub fn set_number(&mut self, role: Role, value: usize) -> SeamResult<()> {
        let index = self.argument(role)?;
        let value = i32::try_from(value).map_err(|_| {
            SeamError::new(
                ErrorCode::Backend,
                format!("{role:?} is {value}, over an i32"),
            )
        })?;
        self.call.set_i32(index, value).map_err(seam_error)
    }

    /// Runs and waits. Results of the run before are gone then.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`: what the function did to its caches is not known then.
    pub fn run(&mut self) -> SeamResult<()> {
        self.call.invoke().map_err(seam_error)
    }

    /// A result of the last run.
    ///
    /// # Errors
    /// `Backend` for a result that the function does not have.
    pub fn result(&self, role: Role) -> SeamResult<Buffer> {
        let index = self.results.get(&role).ok_or_else(|| self.unknown(role))?;
        self.call.result_buffer(*index).map_err(seam_error)
    }

    /// Intermediate results that the function shows, in the order of the computation.
    pub fn taps(&self) -> Vec<TapSite> {
        let roles = self.signature.results.iter().map(|slot| slot.role);
        roles
            .filter_map(|role| match role {
                Role::Tap(site) => Some(site),
                _ => None,
            })
            .collect()
    }

    /// Lets the results of the last run go.
    pub fn drop_results(&mut self) {
        self.call.drop_results();
    }

    fn argument(&self, role: Role) -> SeamResult<usize> {
        let index = self.arguments.get(&role).copied();
        index.ok_or_else(|| self.unknown(role))
    }

    fn unknown(&self, role: Role) -> SeamError {
        let name = &self.signature.name;
        SeamError::new(ErrorCode::Backend, format!("{name} has no {role:?}"))
    }
}
