//! How far two rows of logits are apart, and what a run's positions come to.

use halfhitch_seam::TokenId;
use serde::Serialize;

/// Where a position is: which prompt, which token of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The prompt's name.
    pub prompt: String,
    /// The position, from 0; the logits are of what follows it.
    pub position: usize,
    /// Whether a decode step computed it, and not a prefill.
    pub decode: bool,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.decode { "decode" } else { "prefill" };
        write!(f, "`{}`, position {} ({how})", self.prompt, self.position)
    }
}

/// One position: the reference's logits against the candidate's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// KL divergence of the candidate's distribution from the reference's, in nats:
    /// `sum p (log p - log q)` with `p` the softmax of the reference's logits.
    pub kl: f64,
    /// The likeliest token of each, of equal ones the lowest.
    pub top: [TokenId; 2],
    /// The reference's largest logit less its second largest.
    pub margin: f64,
    /// The largest magnitude among the reference's logits.
    pub scale: f64,
    /// The largest difference of a logit.
    pub max_dlogit: f64,
    /// Mean of the squared differences.
    pub mean_square: f64,
    /// Negative log-likelihoods of the token that does follow, in nats, where there is one.
    pub nll: Option<[f64; 2]>,
}

impl Distance {
    /// Compares two rows of equal length, at least one. Logits that are not finite make it infinite.
    pub fn between(reference: &[f32], candidate: &[f32], next: Option<TokenId>) -> Self {
        let (r, c) = (Softmax::of(reference), Softmax::of(candidate));
        let (mut kl, mut max_dlogit, mut squares, mut scale) = (0.0f64, 0.0f64, 0.0, 0.0f64);
        let mut finite = true;
        for (&a, &b) in reference.iter().zip(candidate) {
            finite &= a.is_finite() && b.is_finite();
            let (a, b) = (f64::from(a), f64::from(b));
            let (log_p, log_q) = (a - r.log_total, b - c.log_total);
            kl += log_p.exp() * (log_p - log_q);
            max_dlogit = max_dlogit.max((a - b).abs());
            squares += (a - b) * (a - b);
            scale = scale.max(a.abs());
        }
        let nll = next.map(|t| {
            let at = |row: &[f32], s: &Softmax| {
                row.get(t as usize)
                    .map_or(f64::INFINITY, |&v| s.log_total - f64::from(v))
            };
            [at(reference, &r), at(candidate, &c)]
        });
        let infinite = |v: f64| if finite { v } else { f64::INFINITY };
        Self {
            // Rounding may leave a sum of zeros just below zero.
            kl: infinite(kl.max(0.0)),
            top: [r.top, c.top],
            margin: r.margin,
            scale,
            max_dlogit: infinite(max_dlogit),
            mean_square: infinite(squares / reference.len().max(1) as f64),
            nll,
        }
    }

    /// The largest difference as a share of the largest logit.
    pub fn relative(&self) -> f64 {
        share(self.max_dlogit, self.scale)
    }

    /// The root mean square difference as a share of the largest logit.
    pub fn relative_rms(&self) -> f64 {
        share(self.mean_square.sqrt(), self.scale)
    }

    /// Whether both choose the same token.
    pub const fn agrees(&self) -> bool {
        self.top[0] == self.top[1]
    }

    /// Whether the reference's choice is clear by `tolerance`, a share of its largest logit.
    pub fn is_clear(&self, tolerance: f64) -> bool {
        self.margin > tolerance * self.scale
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

/// What a softmax in f64 needs of a row.
struct Softmax {
    top: TokenId,
    margin: f64,
    /// Logarithm of the sum of exponentials.
    log_total: f64,
}

impl Softmax {
    fn of(row: &[f32]) -> Self {
        let (mut top, mut first, mut second) = (0, f64::NEG_INFINITY, f64::NEG_INFINITY);
        for (i, &v) in row.iter().enumerate() {
            let v = f64::from(v);
            if v > first {
                (second, first, top) = (first, v, i);
            } else if v > second {
                second = v;
            }
        }
        let total: f64 = row.iter().map(|&v| (f64::from(v) - first).exp()).sum();
        Self {
            top: top as TokenId,
            margin: first - second,
            log_total: first + total.ln(),
        }
    }
}

/// A position with its place.
#[derive(Clone, Debug)]
pub struct Position {
    /// Where.
    pub place: Place,
    /// How far apart.
    pub distance: Distance,
}

/// What positions come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Metrics {
    /// How many.
    pub positions: usize,
    /// Mean KL divergence, in nats.
    pub kl_mean: f64,
    /// The KL divergence that a thousandth of the positions exceeds.
    pub kl_p999: f64,
    /// The largest.
    pub kl_max: f64,
    /// Where it is.
    pub kl_max_at: Option<Place>,
    /// Share of positions where both choose the same token.
    pub top1: f64,
    /// Positions where the reference is clear.
    pub clear: usize,
    /// Share of those where both choose the same.
    pub clear_top1: f64,
    /// The first of those where they do not.
    pub clear_miss_at: Option<Place>,
    /// Largest difference of a logit, as it is.
    pub max_dlogit: f64,
    /// Root mean square of all differences, as it is.
    pub rms_dlogit: f64,
    /// Largest difference as a share of its position's largest logit.
    pub dlogit: f64,
    /// Where it is.
    pub dlogit_at: Option<Place>,
    /// Largest root mean square difference of a position, as the same share.
    pub dlogit_rms: f64,
}

impl Metrics {
    /// What `positions` come to; `tolerance` makes a choice clear, see [`Distance::is_clear`].
    pub fn of<'a>(positions: impl Iterator<Item = &'a Position>, tolerance: f64) -> Self {
        let positions: Vec<&Position> = positions.collect();
        let n = positions.len();
        if n == 0 {
            return Self {
                top1: 1.0,
                clear_top1: 1.0,
                ..Self::default()
            };
        }
        let mean = |of: &dyn Fn(&Distance) -> f64| {
            positions.iter().map(|p| of(&p.distance)).sum::<f64>() / n as f64
        };
        let worst = |of: &dyn Fn(&Distance) -> f64| {
            let largest = positions
                .iter()
                .map(|p| of(&p.distance))
                .fold(0.0, f64::max);
            let at = positions.iter().find(|p| of(&p.distance) >= largest);
            (largest, at.map(|p| p.place.clone()))
        };
        let mut kl: Vec<f64> = positions.iter().map(|p| p.distance.kl).collect();
        kl.sort_by(f64::total_cmp);
        let (kl_max, kl_max_at) = worst(&|d| d.kl);
        let (dlogit, dlogit_at) = worst(&Distance::relative);
        let clear: Vec<_> = positions
            .iter()
            .filter(|p| p.distance.is_clear(tolerance))
            .collect();
        let missed: Vec<_> = clear.iter().filter(|p| !p.distance.agrees()).collect();
        Self {
            positions: n,
            kl_mean: mean(&|d| d.kl),
            kl_p999: kl[(n * 999).div_ceil(1000).clamp(1, n) - 1],
            kl_max,
            kl_max_at,
            top1: mean(&|d| f64::from(u8::from(d.agrees()))),
            clear: clear.len(),
            clear_top1: 1.0 - share(missed.len() as f64, clear.len() as f64),
            clear_miss_at: missed.first().map(|p| p.place.clone()),
            max_dlogit: worst(&|d| d.max_dlogit).0,
            rms_dlogit: mean(&|d| d.mean_square).sqrt(),
            dlogit,
            dlogit_at,
            dlogit_rms: worst(&Distance::relative_rms).0,
        }
    }
}

/// Perplexities over the tokens that follow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// The reference's.
    pub against: f64,
    /// The candidate's.
    pub candidate: f64,
    /// The candidate's over the reference's, less 1.
    pub difference: f64,
    /// Tokens it was taken over.
    pub tokens: usize,
}

impl Perplexity {
    /// Over all positions that a token follows; none where there is no such position.
    pub fn of<'a>(positions: impl Iterator<Item = &'a Position>) -> Option<Self> {
        let nlls: Vec<[f64; 2]> = positions.filter_map(|p| p.distance.nll).collect();
        let n = nlls.len();
        let mean = |side: usize| nlls.iter().map(|nll| nll[side]).sum::<f64>() / n as f64;
        (n > 0).then(|| Self {
            against: mean(0).exp(),
            candidate: mean(1).exp(),
            // From the difference itself: perplexities of random tokens are large, and may overflow.
            difference: (mean(1) - mean(0)).exp_m1(),
            tokens: n,
        })
    }
}

/// The first position where the two choose different tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Where.
    pub at: Place,
    /// The reference's token.
    pub against: TokenId,
    /// The candidate's.
    pub candidate: TokenId,
    /// How far the reference's two largest logits are apart.
    pub margin: f64,
    /// Whether that is clear.
    pub clear: bool,
}

impl Divergence {
    /// The first of `positions`, in their order.
    pub fn first(positions: &[Position], tolerance: f64) -> Option<Self> {
        let p = positions.iter().find(|p| !p.distance.agrees())?;
        Some(Self {
            at: p.place.clone(),
            against: p.distance.top[0],
            candidate: p.distance.top[1],
            margin: p.distance.margin,
            clear: p.distance.is_clear(tolerance),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(distance: Distance, position: usize) -> Position {
        Position {
            place: Place {
                prompt: "p".into(),
                position,
                decode: position > 1,
            },
            distance,
        }
    }

    #[test]
    fn divergence_is_that_of_the_distributions() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): (ln 2)/2 - (ln 2)/4.
        let ln = |v: f32| v.ln();
        let p = [ln(2.0), 0.0, 0.0];
        let q = [ln(1.0) + 7.0, ln(2.0) + 7.0, 7.0];
        let d = Distance::between(&p, &q, Some(1));
        assert!((d.kl - 0.25 * 2f64.ln()).abs() < 1e-6, "{}", d.kl);
        assert_eq!((d.top, d.agrees()), ([0, 1], false));
        let [a, b] = d.nll.unwrap();
        assert!((a - 4f64.ln()).abs() < 1e-6 && (b - 2f64.ln()).abs() < 1e-6);
        assert!((d.margin - 2f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_shift_of_all_logits_is_no_divergence() {
        let p: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin() * 9.0).collect();
        let q: Vec<f32> = p.iter().map(|v| v + 64.0).collect();
        let d = Distance::between(&p, &q, None);
        assert!(d.kl < 1e-10 && d.agrees() && d.max_dlogit > 63.9);
    }

    #[test]
    fn large_logits_neither_overflow_nor_vanish() {
        let d = Distance::between(&[3e4, -3e4], &[3e4, -2.9e4], Some(0));
        assert!(d.kl.is_finite() && d.nll.unwrap()[0] == 0.0);
        let d = Distance::between(&[0.0, 1.0], &[0.0, f32::NAN], None);
        assert_eq!((d.kl, d.max_dlogit), (f64::INFINITY, f64::INFINITY));
    }

    #[test]
    fn metrics_find_the_worst_and_where() {
        let same = Distance::between(&[1.0, 4.0], &[1.0, 4.0], Some(1));
        let near = Distance::between(&[4.0, 3.9], &[3.9, 4.0], Some(1));
        let far = Distance::between(&[4.0, 0.0], &[0.0, 4.0], None);
        let all: Vec<_> = [same, near, far]
            .into_iter()
            .enumerate()
            .map(|(i, d)| position(d, i))
            .collect();
        let m = Metrics::of(all.iter(), 0.05);
        assert_eq!((m.positions, m.clear), (3, 2));
        assert!((m.top1 - 1.0 / 3.0).abs() < 1e-12 && (m.clear_top1 - 0.5).abs() < 1e-12);
        assert_eq!(m.kl_max_at.clone().unwrap().position, 2);
        assert_eq!((m.dlogit, m.max_dlogit), (1.0, 4.0));
        assert_eq!(m.kl_p999, m.kl_max);
        let d = Divergence::first(&all, 0.05).unwrap();
        assert_eq!((d.at.position, d.clear, d.candidate), (1, false, 1));
        let p = Perplexity::of(all.iter()).unwrap();
        assert_eq!(p.tokens, 2);
        assert!(p.difference < 0.0 && p.candidate < p.against);
        assert!(Perplexity::of([position(far, 2)].iter()).is_none());
    }
}
