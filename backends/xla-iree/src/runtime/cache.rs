//! A sequence's key-value cache on the device.
//!
//! One buffer a layer, allocated by itself: steps update them in place, so no two may share memory. The capacity doubles when it is reached, so a sequence holds at
//! most twice what it uses, and a token's time does not depend on the capacity.

use halfhitch_seam::{ErrorCode, ExecutionPlan, ModelSpec, SeamError, SeamResult};
use halfhitch_xla_iree_sys::{Buffer, DType, Device};

use super::error::seam_error;
use super::upload::iree_type;
use crate::emitter::TILE;

/// The smallest capacity, in positions.
const SMALLEST: usize = 256;

/// The capacity for `needed` positions where no more than `most` are ever needed: a power of two, but
/// for the last, and whole tiles, so that the last one can be read to its end.
pub fn capacity_for(needed: usize, most: usize) -> usize {
    needed
        .max(SMALLEST)
        .checked_next_power_of_two()
        .unwrap_or(most)
        .min(most)
        .max(needed)
        .next_multiple_of(TILE)
}

/// Keys and values of every layer.
pub struct Cache {
    capacity: usize,
    dtype: DType,
    /// `[kv_heads, head_dim]` of every layer.
    widths: Vec<[usize; 2]>,
    /// `[capacity, 2 * kv_heads, head_dim]` of every layer, a position's keys before its values; empty
    /// before anything is needed.
    layers: Vec<Buffer>,
}

impl Cache {
    /// A cache without memory.
    pub fn new(model: &ModelSpec, plan: &ExecutionPlan) -> Self {
        Self {
            capacity: 0,
            dtype: iree_type(plan.kv_dtype.into()),
            widths: model
                .layers
                .iter()
                .map(|l| [l.attention.kv_heads, l.attention.head_dim])
                .collect(),
            layers: Vec::new(),
        }
    }

    /// Positions that fit.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for `capacity` positions and keeps the first `live`. On failure nothing changes.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn grow(&mut self, device: &Device, capacity: usize, live: usize) -> SeamResult<()> {
        if capacity <= self.capacity {
            return Ok(());
        }
        let mut layers = Vec::with_capacity(self.widths.len());
        for (i, &[heads, width]) in self.widths.iter().enumerate() {
            let row = 2 * heads * width * (self.dtype.bits() as usize / 8);
            let dims = [capacity, 2 * heads, width];
            let new = Buffer::allocate(device, self.dtype, &dims).map_err(seam_error)?;
            if let Some(old) = self.layers.get(i).filter(|_| live > 0) {
                let mut content = room_for(live * row)?;
                old.read_into(0, &mut content).map_err(seam_error)?;
                new.write(0, &content).map_err(seam_error)?;
            }
            layers.push(new);
        }
        self.layers = layers;
        self.capacity = capacity;
        Ok(())
    }

    /// A layer's buffer.
    pub fn get(&self, layer: usize) -> &Buffer {
        &self.layers[layer]
    }

    /// What a step left of it: the same memory where the step worked in place.
    pub fn replace(&mut self, layer: usize, buffer: Buffer) {
        self.layers[layer] = buffer;
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.widths.len()
    }
}

/// Zeroed bytes, where there is memory for them: to fail halfway would end the process.
fn room_for(bytes: usize) -> SeamResult<Vec<u8>> {
    let mut content = Vec::new();
    content.try_reserve_exact(bytes).map_err(|_| {
        SeamError::new(
            ErrorCode::OutOfMemory,
            format!("no memory to move {bytes} bytes of a cache that grows"),
        )
        .hint("release sequences or use a shorter context")
    })?;
    content.resize(bytes, 0);
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_double_up_to_the_most() {
        for (needed, most, want) in [
            (1, 8320, 256),
            (256, 8320, 256),
            (257, 8320, 512),
            (5000, 8320, 8192),
            (8200, 8320, 8320),
            (1, 100, 112),
            (100, 100, 112),
        ] {
            assert_eq!(capacity_for(needed, most), want, "{needed} of {most}");
        }
    }
}
