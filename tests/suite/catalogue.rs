//! Every case that there is for a device, in the order in which they are run.

use std::sync::Arc;

use halfhitch_seam::{Precision, SeamResult};

use crate::report::{Miss, Outcome};
use crate::resources::{Confined, Resident};
use crate::subject::Subject;
use crate::test::{Test, Tier};
use crate::{architectures, contract, numerics, resources, shapes, threads};

/// What the suite cannot know by itself.
#[derive(Clone)]
pub struct Surroundings {
    /// What the process has resident.
    pub resident: Resident,
    /// A process of its own for the case that runs out of memory, where there can be one.
    pub confined: Option<Confined>,
}

impl Default for Surroundings {
    /// Nothing is known.
    fn default() -> Self {
        Self {
            resident: || None,
            confined: None,
        }
    }
}

/// Every case for a device: all that there are with `full`, else those of [`Tier::Quick`]. What the
/// device does not advertise is among them, and ends as unsupported.
///
/// # Errors
/// What the device's capabilities say.
pub fn catalogue(subject: &Subject, full: bool, surroundings: Surroundings) -> Outcome<Vec<Test>> {
    let capabilities = subject.capabilities()?;
    let mut tests = contract::tests(subject)?;
    let more = || -> SeamResult<Vec<Test>> {
        let Surroundings { resident, confined } = surroundings;
        let mut more = threads::tests()?;
        more.extend(resources::tests(resident, confined)?);
        more.extend(numerics::tests(&capabilities.features, &Precision::ALL)?);
        more.extend(shapes::tests(&Precision::ALL)?);
        more.extend(architectures::tests(&Precision::ALL)?);
        Ok(more)
    };
    tests.extend(more().map_err(|e| Miss::Fail(format!("the suite's own models: {e}")))?);
    tests.retain(|t| full || t.tier == Tier::Quick);
    Ok(tests)
}

/// Whether a name is meant by what a user wrote: the whole name with `*` for any text, or any part of it.
pub fn selects(wish: &str, name: &str) -> bool {
    if wish.contains('*') {
        return crate::expectations::Pattern::new(wish).matches(name);
    }
    name.contains(wish)
}

/// A catalogue's models by their case's name, for whoever has to show or keep one.
pub fn model_of<'a>(tests: &'a [Test], name: &str) -> Option<&'a Arc<crate::models::Generated>> {
    tests.iter().find(|t| t.name == name)?.model.as_ref()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use halfhitch_reference_cpu::ReferenceCpu;

    use super::*;

    #[test]
    fn names_are_unique_and_the_quick_ones_a_small_part() {
        let subject = Subject::first(Arc::new(ReferenceCpu::new())).unwrap();
        let all = catalogue(&subject, true, Surroundings::default()).unwrap();
        let quick = catalogue(&subject, false, Surroundings::default()).unwrap();
        let names: BTreeSet<_> = all.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() > 3000, "only {}", all.len());
        assert!(
            quick.len() * 8 < all.len(),
            "{} of {}",
            quick.len(),
            all.len()
        );
        for part in [
            "contract/",
            "threads/",
            "resources/",
            "generated/",
            "shapes/",
        ] {
            let of = quick.iter().filter(|t| t.name.starts_with(part)).count();
            assert!(of >= 4, "{part}: {of}");
        }
        // What fits on a command line and in a file's name.
        for name in names {
            let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
            assert!(name.chars().all(plain), "{name}");
        }
        let model = model_of(&all, "shapes/odd-vocabulary/f32/prompt-of-4").unwrap();
        assert_eq!(model.spec.vocab_size, 4099);
    }

    #[test]
    fn a_wish_is_a_part_of_a_name_or_a_pattern() {
        let name = "contract/plain/batch-equals-single";
        for (wish, means) in [
            ("batch", true),
            ("contract/", true),
            ("", true),
            ("contract/*/batch*", true),
            ("*single", true),
            ("contract*batch", false),
            ("window", false),
        ] {
            assert_eq!(selects(wish, name), means, "{wish}");
        }
    }
}
