//! What a step shows of its intermediate results, where somebody asked.

use halfhitch_seam::{SeamResult, Tap, TapPoint, TapSite};

/// Collects intermediate results; by default it does nothing.
#[derive(Debug, Default)]
pub struct Taps(Option<Vec<Tap>>);

impl Taps {
    /// One that collects.
    pub const fn on() -> Self {
        Self(Some(Vec::new()))
    }

    /// Notes `values`, `rows` rows of equal width. Rows of a later chunk are appended to the earlier
    /// ones' tap.
    pub fn note(&mut self, layer: Option<usize>, point: TapPoint, rows: usize, values: &[f32]) {
        let Some(taps) = &mut self.0 else {
            return;
        };
        let site = TapSite { layer, point };
        let shape = [rows, values.len() / rows.max(1)];
        match taps.iter_mut().find(|t| t.site == site) {
            Some(tap) => {
                tap.shape[0] += rows;
                tap.values.extend_from_slice(values);
            }
            None => taps.push(Tap {
                site,
                shape,
                values: values.to_vec(),
            }),
        }
    }

    /// All that was noted, in the order of the computation.
    ///
    /// # Errors
    /// `Backend` where a tap has not the shape it says.
    pub fn finish(self) -> SeamResult<Vec<Tap>> {
        let taps = self.0.unwrap_or_default().into_iter();
        taps.map(|t| Tap::new(t.site, t.shape, t.values)).collect()
    }
}
