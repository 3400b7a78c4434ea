//! The key-value cache of one sequence.

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};

/// Keys and values of one layer, position after position.
#[derive(Debug, Default)]
pub struct LayerCache {
    /// `[positions, kv_heads * head_dim]`, rotated.
    pub keys: Vec<f32>,
    /// `[positions, kv_heads * head_dim]`.
    pub values: Vec<f32>,
    width: usize,
}

/// All layers' keys and values. While a step runs, layers hold more positions than [`Self::len`]
/// says; [`Self::commit`] makes them count and [`Self::cut`] drops them.
#[derive(Debug)]
pub struct Cache {
    /// One a layer.
    pub layers: Vec<LayerCache>,
    len: usize,
    limit: usize,
}

impl Cache {
    /// An empty cache for at most `limit` positions; `widths` are `kv_heads * head_dim` of each layer.
    pub fn new(widths: impl Iterator<Item = usize>, limit: usize) -> Self {
        let layer = |width| LayerCache {
            width,
            ..LayerCache::default()
        };
        Self {
            layers: widths.map(layer).collect(),
            len: 0,
            limit,
        }
    }

    /// Committed positions.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Makes room for `more` positions in every layer, doubling up to the limit, so that a step
    /// cannot run out of memory halfway.
    ///
    /// # Errors
    /// `OutOfMemory`; nothing has changed then.
    pub fn reserve(&mut self, more: usize) -> SeamResult<()> {
        let needed = self.len + more;
        for layer in &mut self.layers {
            if needed * layer.width <= layer.keys.capacity().min(layer.values.capacity()) {
                continue;
            }
            let room = needed.max(2 * self.len).min(self.limit.max(needed));
            for part in [&mut layer.keys, &mut layer.values] {
                let extra = room * layer.width - part.len();
                part.try_reserve_exact(extra).map_err(|_| {
                    SeamError::new(
                        ErrorCode::OutOfMemory,
                        format!("no memory for the cache of {room} tokens"),
                    )
                    .hint("release sequences or use a shorter context")
                })?;
            }
        }
        Ok(())
    }

    /// Counts the positions that a step has appended to every layer.
    pub fn commit(&mut self, positions: usize) {
        self.len += positions;
        debug_assert!(
            self.layers
                .iter()
                .all(|l| l.keys.len() == self.len * l.width)
        );
    }

    /// Drops every position from `len` on, committed or not.
    pub fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            layer.keys.truncate(self.len * layer.width);
            layer.values.truncate(self.len * layer.width);
        }
    }
}

impl LayerCache {
    /// Appends one position.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        debug_assert_eq!((keys.len(), values.len()), (self.width, self.width));
        self.keys.extend_from_slice(keys);
        self.values.extend_from_slice(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncommitted_step_can_be_dropped() {
        let mut cache = Cache::new([2, 4].into_iter(), 8);
        let step = |cache: &mut Cache| {
            cache.reserve(1).unwrap();
            cache.layers[0].append(&[1.0; 2], &[2.0; 2]);
            cache.layers[1].append(&[1.0; 4], &[2.0; 4]);
        };
        step(&mut cache);
        cache.commit(1);
        step(&mut cache);
        cache.cut(1);
        assert_eq!(cache.len(), 1);
        assert_eq!(cache.layers[1].keys, [1.0; 4]);
        cache.cut(0);
        assert_eq!((cache.len(), cache.layers[0].values.len()), (0, 0));
    }

    #[test]
    fn room_doubles_and_stays_within_the_limit() {
        let mut cache = Cache::new([1].into_iter(), 5);
        for _ in 0..5 {
            cache.reserve(1).unwrap();
            cache.layers[0].append(&[0.0], &[0.0]);
            cache.commit(1);
        }
        assert!(cache.layers[0].keys.capacity() <= 5);
    }

    #[test]
    fn absurd_room_is_an_error_and_changes_nothing() {
        let mut cache = Cache::new([1 << 20].into_iter(), usize::MAX >> 21);
        let e = cache.reserve(1 << 40).unwrap_err();
        assert_eq!(e.code, ErrorCode::OutOfMemory);
        assert_eq!(cache.len(), 0);
    }
}
