//! How far logits may be from the reference's: the one table.

use std::fmt;

use halfhitch_seam::{DType, Precision, SeamError, SeamResult};
use serde::Serialize;

/// Limits of one precision. What each is of stands with [`super::Metrics`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Most mean KL divergence, in nats.
    pub kl_mean: f64,
    /// Most KL divergence that all but a thousandth of the positions may have, in nats.
    pub kl_p999: f64,
    /// Most KL divergence of any position, in nats.
    pub kl_max: f64,
    /// Least share of positions with the reference's likeliest token.
    pub top1: f64,
    /// Least share of the same among positions where the reference is clear: its two largest logits lie
    /// further apart than `dlogit` of its largest.
    pub clear_top1: f64,
    /// Most difference of any logit, as a share of the largest logit (by magnitude) of its position.
    pub dlogit: f64,
    /// Most root mean square difference of logits, as the same share.
    pub dlogit_rms: f64,
    /// Most relative difference of perplexity.
    pub perplexity: f64,
    /// Most relative difference of an intermediate result beyond what its inputs explain; for
    /// localisation, no check of the gate.
    pub tap: f64,
}

/// One limit, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // each is the field of its name
pub enum LimitName {
    KlMean,
    KlP999,
    KlMax,
    Top1,
    ClearTop1,
    Dlogit,
    DlogitRms,
    Perplexity,
    Tap,
}

impl LimitName {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::KlMean,
        Self::KlP999,
        Self::KlMax,
        Self::Top1,
        Self::ClearTop1,
        Self::Dlogit,
        Self::DlogitRms,
        Self::Perplexity,
        Self::Tap,
    ];

    /// The name on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KlMean => "kl-mean",
            Self::KlP999 => "kl-p999",
            Self::KlMax => "kl-max",
            Self::Top1 => "top1",
            Self::ClearTop1 => "clear-top1",
            Self::Dlogit => "dlogit",
            Self::DlogitRms => "dlogit-rms",
            Self::Perplexity => "perplexity",
            Self::Tap => "tap",
        }
    }

    /// Whether a value must reach the limit, and not stay below it.
    pub const fn is_least(self) -> bool {
        matches!(self, Self::Top1 | Self::ClearTop1)
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What f32 backends may differ by: the order of sums alone.
const F32: Limits = Limits {
    kl_mean: 1e-9,
    kl_p999: 1e-8,
    kl_max: 1e-8,
    top1: 0.995,
    clear_top1: 1.0,
    dlogit: 1e-4,
    dlogit_rms: 4e-5,
    perplexity: 1e-5,
    tap: 1e-4,
};

/// Weights and activations of contractions rounded to 11 bits.
const F16: Limits = Limits {
    kl_mean: 1e-4,
    kl_p999: 2e-3,
    kl_max: 2e-3,
    top1: 0.98,
    clear_top1: 1.0,
    dlogit: 2e-2,
    dlogit_rms: 1.2e-2,
    perplexity: 2e-3,
    tap: 1e-2,
};

/// Weights and activations of contractions rounded to 8 bits.
const BF16: Limits = Limits {
    kl_mean: 5e-3,
    kl_p999: 1e-1,
    kl_max: 1e-1,
    top1: 0.93,
    clear_top1: 1.0,
    dlogit: 1.5e-1,
    dlogit_rms: 5e-2,
    perplexity: 2e-2,
    tap: 8e-2,
};

impl Limits {
    /// The limits of a precision of contractions with a cache of `kv`.
    pub fn of(precision: Precision, kv: DType) -> Self {
        let contractions = match precision {
            Precision::F32 => F32,
            Precision::F16 => F16,
            Precision::BF16 => BF16,
        };
        let cache = match kv {
            DType::F16 => F16,
            DType::BF16 => BF16,
            _ => F32,
        };
        contractions.looser(cache)
    }

    /// Each limit the looser of two: for a comparison of two sides of which neither is exact.
    #[must_use]
    pub fn looser(mut self, other: Self) -> Self {
        for name in LimitName::ALL {
            let (a, b) = (self.get(name), other.get(name));
            let looser = if name.is_least() { a.min(b) } else { a.max(b) };
            *self.slot(name) = looser;
        }
        self
    }

    /// A limit by its name.
    pub fn get(&self, name: LimitName) -> f64 {
        let mut copy = *self;
        *copy.slot(name)
    }

    /// Sets a limit from the command line.
    ///
    /// # Errors
    /// `InvalidInput` for a name that there is not, or a value that is no limit.
    pub fn set(&mut self, name: &str, value: f64) -> SeamResult<()> {
        let known = LimitName::ALL.into_iter().find(|n| n.name() == name);
        let Some(known) = known else {
            let all: Vec<_> = LimitName::ALL.iter().map(|n| n.name()).collect();
            return Err(
                SeamError::invalid_input(format!("there is no limit `{name}`"))
                    .hint(format!("one of {}", all.join(", "))),
            );
        };
        if !value.is_finite() || value < 0.0 {
            return Err(SeamError::invalid_input(format!(
                "{name} is {value}, not a number from 0 up"
            )));
        }
        // Those with a least value are shares.
        if known.is_least() && value > 1.0 {
            return Err(SeamError::invalid_input(format!(
                "{name} is {value}, and a share is at most 1"
            )));
        }
        *self.slot(known) = value;
        Ok(())
    }

    const fn slot(&mut self, name: LimitName) -> &mut f64 {
        match name {
            LimitName::KlMean => &mut self.kl_mean,
            LimitName::KlP999 => &mut self.kl_p999,
            LimitName::KlMax => &mut self.kl_max,
            LimitName::Top1 => &mut self.top1,
            LimitName::ClearTop1 => &mut self.clear_top1,
            LimitName::Dlogit => &mut self.dlogit,
            LimitName::DlogitRms => &mut self.dlogit_rms,
            LimitName::Perplexity => &mut self.perplexity,
            LimitName::Tap => &mut self.tap,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrower_type_never_has_a_tighter_limit() {
        for name in LimitName::ALL {
            let of = |p| Limits::of(p, DType::F32).get(name);
            let [f32, f16, bf16] = Precision::ALL.map(of);
            if name.is_least() {
                assert!(f32 >= f16 && f16 >= bf16, "{name}");
            } else {
                assert!(f32 <= f16 && f16 <= bf16, "{name}");
            }
        }
    }

    #[test]
    fn the_looser_of_two_is_loose_in_every_way() {
        let both = Limits::of(Precision::F32, DType::F16);
        assert_eq!(both, F16.looser(F32));
        assert_eq!((both.top1, both.dlogit), (F16.top1, F16.dlogit));
    }

    #[test]
    fn limits_are_set_by_name() {
        let mut limits = F32;
        limits.set("kl-mean", 0.5).unwrap();
        assert_eq!(limits.kl_mean, 0.5);
        for name in LimitName::ALL {
            limits.set(name.name(), 0.25).unwrap();
            assert_eq!(limits.get(name), 0.25);
            // A record says what the flag says.
            assert_eq!(serde_json::to_value(name).unwrap(), name.name());
        }
        for (name, value) in [("kl-median", 1.0), ("top1", f64::NAN), ("top1", -1.0)] {
            assert!(limits.set(name, value).is_err(), "{name}");
        }
    }
}
